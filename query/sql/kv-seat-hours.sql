/* How many seats of each serving page were taken, in seat-hours?

   One row per series of a gauge in extra_samples, whose name stands in one place below ("gauge"). A sample speaks until the next one of its
   series, at most 5/2 of its round's interval (A4). The value is rounded once to parts per million of a seat (A15), so seat_ppm_ms is exact;
   a gauge that is a share (0 to 1) gives the same in full pages. A sample that is NaN, negative or a million seats and more is no reading:
   its time is in unread_ms and not 0 seats. gap_ms lies between two samples and beyond the horizon. coverage is seen_ms of the three
   together; what was lost before the first sample and after the last is in none. Series whose round is not in scrapes speak for no time.

   Milliseconds of an instant are its digits: no function for that is common to the engines. Right from 1970 to 2099, the session in UTC. */
WITH gauge AS (
  SELECT 'vllm:num_requests_running' AS name
), rounds AS (
  SELECT r.cluster, r.node, r.source, r.at, MAX(r.interval_ms) AS interval_ms
  FROM scrapes AS r
  GROUP BY r.cluster, r.node, r.source, r.at
), samples AS (
  SELECT x.cluster, x.node, x.source, x.name, x.labels, x.at, MAX(x.value) AS value
  FROM extra_samples AS x
  JOIN gauge AS g ON g.name = x.name
  GROUP BY x.cluster, x.node, x.source, x.name, x.labels, x.at
), timed AS (
  SELECT s.cluster, s.node, s.source, s.name, s.labels, s.value, COALESCE(r.interval_ms, 0) * 5 AS two_horizons_ms,
    86400000 * CAST(EXTRACT(DOY FROM s.at) - 1 + 365 * (EXTRACT(YEAR FROM s.at) - 1970) + (EXTRACT(YEAR FROM s.at) - 1969 - (EXTRACT(YEAR FROM s.at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM s.at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM s.at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(s.at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(s.at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS at_ms
  FROM samples AS s
  LEFT JOIN rounds AS r ON r.cluster = s.cluster AND r.node = s.node AND r.source = s.source AND r.at = s.at
), spoken AS (
  SELECT t.cluster, t.node, t.source, t.name, t.labels, t.at_ms,
    CAST((t.two_horizons_ms - t.two_horizons_ms % 2) / 2 AS BIGINT) AS horizon_ms,
    LEAD(t.at_ms) OVER (PARTITION BY t.cluster, t.node, t.source, t.name, t.labels ORDER BY t.at_ms) - t.at_ms AS next_ms,
    CASE WHEN t.value >= 0 AND t.value < 1000000 THEN CAST(ROUND(t.value * 1000000) AS BIGINT) END AS seats_ppm
  FROM timed AS t
), covers AS (
  SELECT p.cluster, p.node, p.source, p.name, p.labels, p.seats_ppm,
    LEAST(COALESCE(p.next_ms, p.horizon_ms), p.horizon_ms) AS ms,
    GREATEST(COALESCE(p.next_ms, p.horizon_ms) - p.horizon_ms, 0) AS gap_ms
  FROM spoken AS p
), sums AS (
  SELECT c.cluster, c.node, c.source, c.name, c.labels,
    CAST(SUM(CASE WHEN c.seats_ppm IS NULL THEN 0 ELSE c.ms END) AS BIGINT) AS seen_ms,
    CAST(SUM(CASE WHEN c.seats_ppm IS NULL THEN c.ms ELSE 0 END) AS BIGINT) AS unread_ms,
    CAST(SUM(c.gap_ms) AS BIGINT) AS gap_ms,
    CAST(SUM(CAST(c.seats_ppm * c.ms AS DECIMAL(38, 0))) AS DECIMAL(38, 0)) AS seat_ppm_ms,
    MAX(c.seats_ppm) AS most_seats_ppm
  FROM covers AS c
  GROUP BY c.cluster, c.node, c.source, c.name, c.labels
)
SELECT s.cluster, s.node, s.source, s.name, s.labels, s.seen_ms, s.unread_ms, s.gap_ms, s.most_seats_ppm, s.seat_ppm_ms,
  CAST(s.seat_ppm_ms AS DOUBLE) / 3600000000000 AS seat_hours,
  CAST(s.seen_ms AS DOUBLE) / CAST(NULLIF(s.seen_ms + s.unread_ms + s.gap_ms, 0) AS DOUBLE) AS coverage
FROM sums AS s
ORDER BY s.cluster, s.node, s.source, s.name, s.labels

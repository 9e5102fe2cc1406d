/* How many of its devices did each pod keep busy over time: p50, p95 and at most?

   One row per pod (by UID, A9) that held two devices or more at once, widest first. A device is busy while the sample that speaks for it
   (A4: until the device's next sample, at most the horizon, for the pod that held it at the sample's instant) has GPU_UTIL, or where that is
   absent GR_ENGINE_ACTIVE, above 0 (tier busy, A5; the test stands in one place below). The figures are over the time in which all
   devices that the pod held were seen: p50 is the smallest number that is not exceeded for half of that time. partly_seen_ms is the pod's
   other time with a device, in milliseconds of its clock: unknown is not idle. All three are null where no time was seen whole. width
   is the most devices held at once: of a gang it is the floor, whatever the percentiles say. coverage is seen_ms of the pod's time with a
   device. Two sources of one device and instant are one sample, the busier (A9); a node's clock that is off by over 500 ms is put right (A11).

   Milliseconds of an instant are its digits: no function for that is common to the engines. Right from 1970 to 2099, the session in UTC. */
WITH skew AS (
  SELECT x.cluster, x.node, x.source, x.at, MAX(x.skew_ms) AS ms
  FROM scrapes AS x
  WHERE ABS(x.skew_ms) > 500
  GROUP BY x.cluster, x.node, x.source, x.at
), readings AS (
  /* What is out of range is no reading (A6), and GPU_UTIL says nothing of a MIG instance. */
  SELECT s.cluster, s.node, s.device, s.source, s.at,
    CASE WHEN s.parent IS NULL AND s.dev_gpu_util BETWEEN 0 AND 100 THEN s.dev_gpu_util END AS gpu_util,
    CASE
      WHEN s.prof_gr_engine_active >= 0
        AND CAST(s.prof_gr_engine_active AS DOUBLE) < CASE WHEN s.parent IS NULL THEN 1.0100000005e0 ELSE 1.5000000005e0 END
      THEN ROUND(CAST(s.prof_gr_engine_active AS DOUBLE) * 1000000)
    END AS active_ppm
  FROM gpu_samples AS s
), timed AS (
  SELECT r.cluster, r.node, r.device, r.gpu_util, r.active_ppm,
    86400000 * CAST(EXTRACT(DOY FROM r.at) - 1 + 365 * (EXTRACT(YEAR FROM r.at) - 1970) + (EXTRACT(YEAR FROM r.at) - 1969 - (EXTRACT(YEAR FROM r.at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM r.at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM r.at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(r.at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(r.at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT)
    - COALESCE(k.ms, 0) AS at_ms
  FROM readings AS r
  LEFT JOIN skew AS k ON k.cluster = r.cluster AND k.node = r.node AND k.source = r.source AND k.at = r.at
), records AS (
  SELECT t.cluster, t.node, t.device, t.at_ms,
    CASE WHEN COALESCE(MAX(t.gpu_util), MAX(t.active_ppm)) > 0 THEN 1 WHEN COALESCE(MAX(t.gpu_util), MAX(t.active_ppm)) = 0 THEN 0 END AS busy
  FROM timed AS t
  GROUP BY t.cluster, t.node, t.device, t.at_ms
), spoken AS (
  SELECT r.cluster, r.node, r.device, r.busy, r.at_ms, r.at_ms - r.at_ms % 3600000 AS hour_ms,
    LEAD(r.at_ms) OVER (PARTITION BY r.cluster, r.node, r.device ORDER BY r.at_ms) AS next_ms
  FROM records AS r
), reach AS (
  /* A sample may speak into the hour after its own. */
  SELECT s.cluster, s.node, s.device, s.busy, s.at_ms, s.hour_ms, s.next_ms FROM spoken AS s WHERE s.busy IS NOT NULL
  UNION ALL
  SELECT s.cluster, s.node, s.device, s.busy, s.at_ms, s.hour_ms + 3600000 AS hour_ms, s.next_ms
  FROM spoken AS s
  WHERE s.busy IS NOT NULL
), pieces AS (
  SELECT p.cluster, p.pod_uid, p.node, p.device, p.horizon_ms,
    86400000 * CAST(EXTRACT(DOY FROM p.from_at) - 1 + 365 * (EXTRACT(YEAR FROM p.from_at) - 1970) + (EXTRACT(YEAR FROM p.from_at) - 1969 - (EXTRACT(YEAR FROM p.from_at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM p.from_at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM p.from_at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(p.from_at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(p.from_at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS from_ms,
    86400000 * CAST(EXTRACT(DOY FROM p.to_at) - 1 + 365 * (EXTRACT(YEAR FROM p.to_at) - 1970) + (EXTRACT(YEAR FROM p.to_at) - 1969 - (EXTRACT(YEAR FROM p.to_at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM p.to_at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM p.to_at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(p.to_at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(p.to_at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS to_ms,
    86400000 * CAST(EXTRACT(DOY FROM p.held_from) - 1 + 365 * (EXTRACT(YEAR FROM p.held_from) - 1970) + (EXTRACT(YEAR FROM p.held_from) - 1969 - (EXTRACT(YEAR FROM p.held_from) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM p.held_from) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM p.held_from) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(p.held_from AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(p.held_from AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS held_ms
  FROM settled_holdings AS p
  WHERE p.kind = 'owner' AND p.device IS NOT NULL
), seen AS (
  SELECT p.cluster, p.pod_uid, r.busy,
    GREATEST(r.at_ms, p.from_ms) AS from_ms,
    LEAST(COALESCE(r.next_ms, p.to_ms), r.at_ms + p.horizon_ms, p.to_ms) AS to_ms
  FROM pieces AS p
  JOIN reach AS r ON r.cluster = p.cluster AND r.node = p.node AND r.device = p.device AND r.hour_ms = p.from_ms - p.from_ms % 3600000
  WHERE r.at_ms >= p.held_ms AND r.at_ms < p.to_ms AND r.at_ms + p.horizon_ms > p.from_ms
    AND (r.next_ms IS NULL OR r.next_ms > p.from_ms)
), edges AS (
  SELECT p.cluster, p.pod_uid, p.from_ms AS at_ms, 1 AS held, 0 AS seen, 0 AS busy FROM pieces AS p
  UNION ALL
  SELECT p.cluster, p.pod_uid, p.to_ms AS at_ms, -1 AS held, 0 AS seen, 0 AS busy FROM pieces AS p
  UNION ALL
  SELECT s.cluster, s.pod_uid, s.from_ms AS at_ms, 0 AS held, 1 AS seen, s.busy FROM seen AS s
  UNION ALL
  SELECT s.cluster, s.pod_uid, s.to_ms AS at_ms, 0 AS held, -1 AS seen, -s.busy AS busy FROM seen AS s
), steps AS (
  SELECT e.cluster, e.pod_uid, e.at_ms, SUM(e.held) AS held, SUM(e.seen) AS seen, SUM(e.busy) AS busy
  FROM edges AS e
  GROUP BY e.cluster, e.pod_uid, e.at_ms
), running AS (
  SELECT s.cluster, s.pod_uid,
    CAST(SUM(s.held) OVER (PARTITION BY s.cluster, s.pod_uid ORDER BY s.at_ms
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS held,
    CAST(SUM(s.seen) OVER (PARTITION BY s.cluster, s.pod_uid ORDER BY s.at_ms
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS seen,
    CAST(SUM(s.busy) OVER (PARTITION BY s.cluster, s.pod_uid ORDER BY s.at_ms
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS busy,
    LEAD(s.at_ms) OVER (PARTITION BY s.cluster, s.pod_uid ORDER BY s.at_ms) - s.at_ms AS ms
  FROM steps AS s
), levels AS (
  SELECT r.cluster, r.pod_uid, CASE WHEN r.seen = r.held THEN r.busy END AS busy, MAX(r.held) AS held, CAST(SUM(r.ms) AS BIGINT) AS ms
  FROM running AS r
  WHERE r.held > 0 AND r.ms > 0
  GROUP BY r.cluster, r.pod_uid, CASE WHEN r.seen = r.held THEN r.busy END
), ranked AS (
  SELECT l.cluster, l.pod_uid, l.busy, l.held, l.ms,
    CAST(SUM(CASE WHEN l.busy IS NULL THEN 0 ELSE l.ms END) OVER (PARTITION BY l.cluster, l.pod_uid) AS BIGINT) AS seen_ms,
    CAST(SUM(CASE WHEN l.busy IS NULL THEN 0 ELSE l.ms END) OVER (PARTITION BY l.cluster, l.pod_uid ORDER BY l.busy NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS up_to_ms
  FROM levels AS l
), pods AS (
  SELECT k.cluster, k.pod_uid, MAX(k.held) AS width, MAX(k.seen_ms) AS seen_ms,
    CAST(SUM(CASE WHEN k.busy IS NULL THEN k.ms ELSE 0 END) AS BIGINT) AS partly_seen_ms,
    MIN(CASE WHEN k.up_to_ms * 100 >= k.seen_ms * 50 THEN k.busy END) AS busy_p50,
    MIN(CASE WHEN k.up_to_ms * 100 >= k.seen_ms * 95 THEN k.busy END) AS busy_p95,
    MAX(k.busy) AS busy_max
  FROM ranked AS k
  GROUP BY k.cluster, k.pod_uid
), names AS (
  SELECT h.cluster, h.pod_uid, MIN(h.namespace) AS namespace, MIN(h.pod) AS pod, MIN(h.team) AS team
  FROM settled_holdings AS h
  WHERE h.kind = 'owner'
  GROUP BY h.cluster, h.pod_uid
)
SELECT p.cluster, p.pod_uid, n.namespace, n.pod, n.team, p.width, p.seen_ms, p.partly_seen_ms, p.busy_p50, p.busy_p95, p.busy_max,
  CAST(p.seen_ms AS DOUBLE) / CAST(NULLIF(p.seen_ms + p.partly_seen_ms, 0) AS DOUBLE) AS coverage
FROM pods AS p
JOIN names AS n ON n.cluster = p.cluster AND n.pod_uid = p.pod_uid
WHERE p.width > 1
ORDER BY p.width DESC, p.cluster, p.pod_uid

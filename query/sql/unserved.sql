/* Who waited for GPUs, how much went unserved, and how much of the same stood idle meanwhile?

   One row per product x region x purchase option. Idle is free time of gpu_hours in whole-GPU-equivalent device-milliseconds (A1), net of
   what is held by number (A16). Unserved is GPUs asked times time waited, in GPU-milliseconds; waits are of pods, in milliseconds. Waits
   that ended with a node (admitted), that have not ended (waiting: censored, at least this long) and that were given up (withdrawn) stand
   apart: a mean over the first alone would hide the rest. A wait is counted from the lake's rows, so it reaches up to the last closed hour,
   and so does idle.
   Demand that was bound stands at its node's product, region and purchase option as the inventory says them; what waits, or gave up, stands
   at the product it asked for, with region and purchase option null, and at product null where it would take any. Products are
   compared as labels write them, blanks as dashes. admitted_mean_wait_ms is to the nearest, half up; null where nobody was admitted.

   Milliseconds of an instant are its digits: no function for that is common to the engines. Right from 1970 to 2099, the session in UTC. */
WITH places AS (
  SELECT n.cluster, n.node, MAX(n.product) AS product, MAX(n.region) AS region, MAX(n.purchase_option) AS purchase_option
  FROM nodes AS n
  WHERE n.kind = 'node'
  GROUP BY n.cluster, n.node
), edges AS (
  SELECT d.cluster, d.pod_uid, d.interval_from, d.gpus, d.product, d.outcome, d.node, 1 AS sign, d.to_at AS at
  FROM demand AS d
  UNION ALL
  SELECT d.cluster, d.pod_uid, d.interval_from, d.gpus, d.product, d.outcome, d.node, -1 AS sign, d.from_at AS at
  FROM demand AS d
), timed AS (
  SELECT e.cluster, e.pod_uid, e.interval_from, e.gpus, e.product, e.outcome, e.node, e.sign *
    (86400000 * CAST(EXTRACT(DOY FROM e.at) - 1 + 365 * (EXTRACT(YEAR FROM e.at) - 1970) + (EXTRACT(YEAR FROM e.at) - 1969 - (EXTRACT(YEAR FROM e.at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM e.at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM e.at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(e.at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(e.at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT)) AS ms
  FROM edges AS e
), waits AS (
  /* The rows of hours that closed before a wait ended do not know how it did. */
  SELECT t.cluster, t.pod_uid, t.interval_from, MAX(t.product) AS product, MAX(t.outcome) AS outcome, MAX(t.node) AS node,
    CAST(SUM(t.ms) AS BIGINT) AS wait_ms, CAST(SUM(t.gpus * t.ms) AS BIGINT) AS gpu_ms
  FROM timed AS t
  GROUP BY t.cluster, t.pod_uid, t.interval_from
), placed AS (
  SELECT REPLACE(CASE WHEN w.outcome = 'bound' THEN COALESCE(p.product, w.product) ELSE w.product END, ' ', '-') AS product,
    CASE WHEN w.outcome = 'bound' THEN p.region END AS region,
    CASE WHEN w.outcome = 'bound' THEN p.purchase_option END AS purchase_option,
    COALESCE(w.outcome, 'waiting') AS outcome, w.wait_ms, w.gpu_ms, 0 AS capacity_ms, 0 AS idle_ms
  FROM waits AS w
  LEFT JOIN places AS p ON p.cluster = w.cluster AND p.node = w.node
  UNION ALL
  SELECT REPLACE(h.product, ' ', '-') AS product, h.region, h.purchase_option, 'idle' AS outcome, 0 AS wait_ms, 0 AS gpu_ms,
    h.ms AS capacity_ms, CASE WHEN h.kind = 'free' THEN h.ms ELSE 0 END AS idle_ms
  FROM gpu_hours AS h
  WHERE h.flags IS NULL OR h.flags NOT LIKE '%open_hour%'
), sums AS (
  SELECT x.product, x.region, x.purchase_option,
    CAST(SUM(x.capacity_ms) AS BIGINT) AS capacity_ms,
    CAST(SUM(x.idle_ms) AS BIGINT) AS idle_ms,
    CAST(SUM(x.gpu_ms) AS BIGINT) AS unserved_gpu_ms,
    CAST(SUM(CASE WHEN x.outcome = 'bound' THEN 1 ELSE 0 END) AS BIGINT) AS admitted,
    CAST(SUM(CASE WHEN x.outcome = 'bound' THEN x.gpu_ms ELSE 0 END) AS BIGINT) AS admitted_gpu_ms,
    CAST(SUM(CASE WHEN x.outcome = 'bound' THEN x.wait_ms ELSE 0 END) AS BIGINT) AS admitted_wait_ms,
    MAX(CASE WHEN x.outcome = 'bound' THEN x.wait_ms END) AS admitted_longest_wait_ms,
    CAST(SUM(CASE WHEN x.outcome = 'waiting' THEN 1 ELSE 0 END) AS BIGINT) AS waiting,
    CAST(SUM(CASE WHEN x.outcome = 'waiting' THEN x.gpu_ms ELSE 0 END) AS BIGINT) AS waiting_gpu_ms,
    MAX(CASE WHEN x.outcome = 'waiting' THEN x.wait_ms END) AS waiting_longest_ms,
    CAST(SUM(CASE WHEN x.outcome = 'withdrawn' THEN 1 ELSE 0 END) AS BIGINT) AS withdrawn,
    CAST(SUM(CASE WHEN x.outcome = 'withdrawn' THEN x.gpu_ms ELSE 0 END) AS BIGINT) AS withdrawn_gpu_ms
  FROM placed AS x
  GROUP BY x.product, x.region, x.purchase_option
)
SELECT s.product, s.region, s.purchase_option, s.capacity_ms, s.idle_ms, s.unserved_gpu_ms,
  s.admitted, s.admitted_gpu_ms,
  CASE WHEN s.admitted > 0 THEN
    CAST((2 * s.admitted_wait_ms + s.admitted - (2 * s.admitted_wait_ms + s.admitted) % (2 * s.admitted)) / (2 * s.admitted) AS BIGINT)
  END AS admitted_mean_wait_ms,
  s.admitted_longest_wait_ms, s.waiting, s.waiting_gpu_ms, s.waiting_longest_ms, s.withdrawn, s.withdrawn_gpu_ms
FROM sums AS s
ORDER BY s.product NULLS LAST, s.region NULLS LAST, s.purchase_option NULLS LAST

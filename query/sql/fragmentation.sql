/* How much free time can no gang of 1, 2, 4 or 8 GPUs use, because it is scattered over nodes or cut into slices?

   One row per product x region x purchase option and shape (the shapes stand in one place below); times in whole-GPU-equivalent
   device-milliseconds (A1). A gang takes whole, unshared GPUs of one node. At any instant a node's f free GPUs hold f / shape gangs, rounded
   down; gang_ms is their time, usable_ms = gang_ms x shape. What a holding by number takes (A16) is on one of them, unknown which:
   counted as whole GPUs, rounded up. lost_ms is the sum of three: scattered_ms (whole and free, too few on their node), partial_ms (free
   MIG instances and slack of shared GPUs), and orphan_ms (what MIG layouts leave over, A8: unavailable, not free). free_ms = usable_ms +
   scattered_ms + partial_ms. lost_share is lost_ms of free_ms + orphan_ms, null where that is 0. No reading is needed for it. A node
   with several products stands under the first of them. Hours that are not closed have no settled holdings and are left out.

   Milliseconds of an instant are its digits: no function for that is common to the engines. Right from 1970 to 2099, the session in UTC. */
WITH shapes AS (
  SELECT 1 AS shape UNION ALL SELECT 2 AS shape UNION ALL SELECT 4 AS shape UNION ALL SELECT 8 AS shape
), settled AS (
  SELECT DISTINCT p.hour_start, p.cluster, p.node FROM settled_holdings AS p
), places AS (
  SELECT h.hour_start, h.cluster, h.node, MIN(h.product) AS product, MIN(h.region) AS region, MIN(h.purchase_option) AS purchase_option,
    CAST(SUM(CASE WHEN h.kind = 'free' THEN h.ms ELSE 0 END) AS BIGINT) AS free_ms,
    CAST(SUM(CASE WHEN h.kind = 'unavailable' AND h.reason = 'mig_orphan' THEN h.ms ELSE 0 END) AS BIGINT) AS orphan_ms
  FROM gpu_hours AS h
  JOIN settled AS s ON s.hour_start = h.hour_start AND s.cluster = h.cluster AND s.node = h.node
  GROUP BY h.hour_start, h.cluster, h.node
), pieces AS (
  SELECT p.hour_start, p.cluster, p.node, p.from_at, p.to_at, 1 AS free, 0 AS taken_num, 1 AS taken_den
  FROM settled_holdings AS p
  WHERE p.kind = 'free' AND p.parent IS NULL AND p.replicas = 1 AND p.weight_num = p.weight_den
  UNION ALL
  SELECT p.hour_start, p.cluster, p.node, p.from_at, p.to_at, 0 AS free, p.free_num AS taken_num, p.unit_den AS taken_den
  FROM settled_holdings AS p
  WHERE p.kind = 'owner' AND p.device IS NULL AND p.free_num > 0
), edges AS (
  SELECT b.hour_start, b.cluster, b.node, b.from_at AS at, b.free, b.taken_num, b.taken_den FROM pieces AS b
  UNION ALL
  SELECT e.hour_start, e.cluster, e.node, e.to_at AS at, -e.free AS free, -e.taken_num AS taken_num, e.taken_den FROM pieces AS e
), steps AS (
  /* One denominator holds for a node and hour; rows of whole GPUs have taken_num 0. */
  SELECT e.hour_start, e.cluster, e.node, e.at, SUM(e.free) AS free, SUM(e.taken_num) AS taken_num, MAX(e.taken_den) AS taken_den
  FROM edges AS e
  GROUP BY e.hour_start, e.cluster, e.node, e.at
), timed AS (
  SELECT s.hour_start, s.cluster, s.node, s.free, s.taken_num, s.taken_den,
    86400000 * CAST(EXTRACT(DOY FROM s.at) - 1 + 365 * (EXTRACT(YEAR FROM s.at) - 1970) + (EXTRACT(YEAR FROM s.at) - 1969 - (EXTRACT(YEAR FROM s.at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM s.at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM s.at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(s.at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(s.at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS at_ms
  FROM steps AS s
), running AS (
  SELECT t.hour_start, t.cluster, t.node,
    CAST(SUM(t.free) OVER (PARTITION BY t.hour_start, t.cluster, t.node ORDER BY t.at_ms
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS free,
    CAST(SUM(t.taken_num) OVER (PARTITION BY t.hour_start, t.cluster, t.node ORDER BY t.at_ms
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS taken_num,
    CAST(MAX(t.taken_den) OVER (PARTITION BY t.hour_start, t.cluster, t.node) AS BIGINT) AS taken_den,
    LEAD(t.at_ms) OVER (PARTITION BY t.hour_start, t.cluster, t.node ORDER BY t.at_ms) - t.at_ms AS ms
  FROM timed AS t
), whole AS (
  SELECT r.hour_start, r.cluster, r.node, r.ms,
    r.free - CAST((r.taken_num + r.taken_den - 1 - (r.taken_num + r.taken_den - 1) % r.taken_den) / r.taken_den AS BIGINT) AS gpus
  FROM running AS r
  WHERE r.ms > 0
), nodes_by_shape AS (
  SELECT w.hour_start, w.cluster, w.node, f.shape,
    CAST(SUM(CASE WHEN w.gpus > 0 THEN w.gpus * w.ms ELSE 0 END) AS BIGINT) AS whole_ms,
    CAST(SUM(CASE WHEN w.gpus > 0 THEN (w.gpus - w.gpus % f.shape) * w.ms ELSE 0 END) AS BIGINT) AS usable_ms
  FROM whole AS w
  CROSS JOIN shapes AS f
  GROUP BY w.hour_start, w.cluster, w.node, f.shape
), sums AS (
  SELECT p.product, p.region, p.purchase_option, f.shape,
    CAST(SUM(p.free_ms) AS BIGINT) AS free_ms,
    CAST(SUM(p.orphan_ms) AS BIGINT) AS orphan_ms,
    CAST(SUM(COALESCE(n.whole_ms, 0)) AS BIGINT) AS whole_ms,
    CAST(SUM(COALESCE(n.usable_ms, 0)) AS BIGINT) AS usable_ms
  FROM places AS p
  CROSS JOIN shapes AS f
  LEFT JOIN nodes_by_shape AS n
    ON n.hour_start = p.hour_start AND n.cluster = p.cluster AND n.node = p.node AND n.shape = f.shape
  GROUP BY p.product, p.region, p.purchase_option, f.shape
)
SELECT s.product, s.region, s.purchase_option, s.shape, s.free_ms,
  CAST((s.usable_ms - s.usable_ms % s.shape) / s.shape AS BIGINT) AS gang_ms, s.usable_ms,
  s.whole_ms - s.usable_ms AS scattered_ms, s.free_ms - s.whole_ms AS partial_ms, s.orphan_ms,
  s.free_ms - s.usable_ms + s.orphan_ms AS lost_ms,
  CAST(s.free_ms - s.usable_ms + s.orphan_ms AS DOUBLE) / CAST(NULLIF(s.free_ms + s.orphan_ms, 0) AS DOUBLE) AS lost_share
FROM sums AS s
ORDER BY s.product NULLS LAST, s.region NULLS LAST, s.purchase_option NULLS LAST, s.shape

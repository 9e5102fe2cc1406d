/* Where did the hours go, by any grouping?

   One row per group. Times are whole-GPU-equivalent device-milliseconds (A1): capacity = allocated + free + unavailable, and per tier
   allocated = utilized + stranded + unobserved (A2); sm is the headline tier (A5). orphan_ms is the part of unavailable that a MIG layout
   leaves over (A8). Free and unavailable time is net of what is held there by number (A16), so that it can be below 0 in a group that is
   finer than a node. A key that is null is not known of that time; the time of nobody (free, unavailable) has no namespace, team or queue.
   sm_coverage is null where nothing was allocated: observed of allocated.

   The grouping stands in one place: the keys of "grouped". Put any columns of gpu_hours there (cluster, node, device, profile, product,
   region, provider, purchase_option, namespace, pod_uid, pod, workload, team, queue, hour_start), or a text of your own where fewer are
   wanted. */
WITH grouped AS (
  SELECT h.provider AS key1, h.region AS key2, h.product AS key3,
    h.*
  FROM gpu_hours AS h
), sums AS (
  SELECT g.key1, g.key2, g.key3,
    CAST(SUM(g.ms) AS BIGINT) AS capacity_ms,
    CAST(SUM(CASE WHEN g.kind = 'owner' THEN g.ms ELSE 0 END) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN g.kind = 'free' THEN g.ms ELSE 0 END) AS BIGINT) AS free_ms,
    CAST(SUM(CASE WHEN g.kind = 'unavailable' THEN g.ms ELSE 0 END) AS BIGINT) AS unavailable_ms,
    CAST(SUM(CASE WHEN g.kind = 'unavailable' AND g.reason = 'mig_orphan' THEN g.ms ELSE 0 END) AS BIGINT) AS orphan_ms,
    CAST(SUM(COALESCE(g.busy_utilized_ms, 0)) AS BIGINT) AS busy_utilized_ms,
    CAST(SUM(COALESCE(g.busy_stranded_ms, 0)) AS BIGINT) AS busy_stranded_ms,
    CAST(SUM(COALESCE(g.sm_utilized_ms, 0)) AS BIGINT) AS sm_utilized_ms,
    CAST(SUM(COALESCE(g.sm_stranded_ms, 0)) AS BIGINT) AS sm_stranded_ms,
    CAST(SUM(COALESCE(g.effective_utilized_ms, 0)) AS BIGINT) AS effective_utilized_ms,
    CAST(SUM(COALESCE(g.effective_stranded_ms, 0)) AS BIGINT) AS effective_stranded_ms
  FROM grouped AS g
  GROUP BY g.key1, g.key2, g.key3
)
SELECT s.key1, s.key2, s.key3, s.capacity_ms, s.allocated_ms, s.free_ms, s.unavailable_ms, s.orphan_ms,
  s.busy_utilized_ms, s.busy_stranded_ms, s.allocated_ms - s.busy_utilized_ms - s.busy_stranded_ms AS busy_unobserved_ms,
  s.sm_utilized_ms, s.sm_stranded_ms, s.allocated_ms - s.sm_utilized_ms - s.sm_stranded_ms AS sm_unobserved_ms,
  s.effective_utilized_ms, s.effective_stranded_ms,
  s.allocated_ms - s.effective_utilized_ms - s.effective_stranded_ms AS effective_unobserved_ms,
  CAST(s.sm_utilized_ms + s.sm_stranded_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS sm_coverage
FROM sums AS s
ORDER BY s.key1 NULLS LAST, s.key2 NULLS LAST, s.key3 NULLS LAST

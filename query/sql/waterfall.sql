/* What becomes of capacity, step by step: capacity, allocated, observed, utilized?

   One row per tier (busy, sm, effective: side by side, not nested, A5). Times are whole-GPU-equivalent device-milliseconds of the whole
   fleet (A1): capacity = allocated + free + unavailable, allocated = observed + unobserved, observed = utilized + stranded (A2).
   orphan_ms (MIG layout loss, A8) is a part of unavailable. Free and unavailable time is net of what is held by number (A16).
   utilized_share is of observed time and coverage is observed of allocated; both are null where that is 0. For a part of the fleet add a
   WHERE to "hours". */
WITH hours AS (
  SELECT h.* FROM gpu_hours AS h
), sums AS (
  SELECT
    CAST(SUM(h.ms) AS BIGINT) AS capacity_ms,
    CAST(SUM(CASE WHEN h.kind = 'owner' THEN h.ms ELSE 0 END) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN h.kind = 'free' THEN h.ms ELSE 0 END) AS BIGINT) AS free_ms,
    CAST(SUM(CASE WHEN h.kind = 'unavailable' THEN h.ms ELSE 0 END) AS BIGINT) AS unavailable_ms,
    CAST(SUM(CASE WHEN h.kind = 'unavailable' AND h.reason = 'mig_orphan' THEN h.ms ELSE 0 END) AS BIGINT) AS orphan_ms,
    CAST(SUM(h.busy_utilized_ms) AS BIGINT) AS busy_utilized_ms,
    CAST(SUM(h.busy_stranded_ms) AS BIGINT) AS busy_stranded_ms,
    CAST(SUM(h.sm_utilized_ms) AS BIGINT) AS sm_utilized_ms,
    CAST(SUM(h.sm_stranded_ms) AS BIGINT) AS sm_stranded_ms,
    CAST(SUM(h.effective_utilized_ms) AS BIGINT) AS effective_utilized_ms,
    CAST(SUM(h.effective_stranded_ms) AS BIGINT) AS effective_stranded_ms
  FROM hours AS h
), tiers AS (
  SELECT 'busy' AS tier, s.capacity_ms, s.allocated_ms, s.free_ms, s.unavailable_ms, s.orphan_ms,
    s.busy_utilized_ms AS utilized_ms, s.busy_stranded_ms AS stranded_ms
  FROM sums AS s
UNION ALL
  SELECT 'sm' AS tier, s.capacity_ms, s.allocated_ms, s.free_ms, s.unavailable_ms, s.orphan_ms,
    s.sm_utilized_ms AS utilized_ms, s.sm_stranded_ms AS stranded_ms
  FROM sums AS s
UNION ALL
  SELECT 'effective' AS tier, s.capacity_ms, s.allocated_ms, s.free_ms, s.unavailable_ms, s.orphan_ms,
    s.effective_utilized_ms AS utilized_ms, s.effective_stranded_ms AS stranded_ms
  FROM sums AS s
)
SELECT t.tier, t.capacity_ms, t.free_ms, t.unavailable_ms, t.orphan_ms, t.allocated_ms,
  t.allocated_ms - t.utilized_ms - t.stranded_ms AS unobserved_ms, t.utilized_ms + t.stranded_ms AS observed_ms,
  t.stranded_ms, t.utilized_ms,
  CAST(t.utilized_ms AS DOUBLE) / CAST(NULLIF(t.utilized_ms + t.stranded_ms, 0) AS DOUBLE) AS utilized_share,
  CAST(t.utilized_ms + t.stranded_ms AS DOUBLE) / CAST(NULLIF(t.allocated_ms, 0) AS DOUBLE) AS coverage
FROM tiers AS t
ORDER BY t.tier

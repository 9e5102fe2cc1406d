/* How long was each MIG profile held, and by whom?

   One row per product, profile and team. held_profile_ms is instance time: one instance held for one millisecond is 1, whatever its size
   (A8, the second meter); allocated_ms is the same time weighted by compute slices, in whole-GPU-equivalent device-milliseconds (A1).
   team is null for unattributed time, product where it is not known. A fleet without MIG has no rows. coverage is observed of allocated,
   tier sm. */
WITH sums AS (
  SELECT h.product, h.profile, h.team, COUNT(DISTINCT h.device) AS instances,
    CAST(SUM(COALESCE(h.held_profile_ms, 0)) AS BIGINT) AS held_profile_ms,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(h.sm_utilized_ms) AS BIGINT) AS sm_utilized_ms,
    CAST(SUM(h.sm_stranded_ms) AS BIGINT) AS sm_stranded_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner' AND h.profile IS NOT NULL
  GROUP BY h.product, h.profile, h.team
)
SELECT s.product, s.profile, s.team, s.instances, s.held_profile_ms, s.allocated_ms, s.sm_utilized_ms, s.sm_stranded_ms,
  s.allocated_ms - s.sm_utilized_ms - s.sm_stranded_ms AS sm_unobserved_ms,
  CAST(s.held_profile_ms AS DOUBLE) / 3600000 AS profile_hours,
  CAST(s.sm_utilized_ms + s.sm_stranded_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS sm_coverage
FROM sums AS s
ORDER BY s.product NULLS LAST, s.profile, s.team NULLS LAST

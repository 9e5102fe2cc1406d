/* Which teams strand which accelerators: allocated and seen, but not utilized?

   One row per tier, team and product, the most stranded of a tier first. Times are whole-GPU-equivalent device-milliseconds (A1) of kind
   owner. Unobserved time is not stranded (A2): it stands beside, and stranded_share is of observed time, null where there is none.
   coverage is observed of allocated. team is null for unattributed time, product where the node does not say it. */
WITH tiers AS (
  SELECT 'busy' AS tier, h.team, h.product, h.ms, h.busy_utilized_ms AS utilized_ms, h.busy_stranded_ms AS stranded_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
UNION ALL
  SELECT 'sm' AS tier, h.team, h.product, h.ms, h.sm_utilized_ms AS utilized_ms, h.sm_stranded_ms AS stranded_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
UNION ALL
  SELECT 'effective' AS tier, h.team, h.product, h.ms, h.effective_utilized_ms AS utilized_ms, h.effective_stranded_ms AS stranded_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
), sums AS (
  SELECT t.tier, t.team, t.product, CAST(SUM(t.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(t.utilized_ms) AS BIGINT) AS utilized_ms, CAST(SUM(t.stranded_ms) AS BIGINT) AS stranded_ms
  FROM tiers AS t
  GROUP BY t.tier, t.team, t.product
)
SELECT s.tier, s.team, s.product, s.allocated_ms, s.utilized_ms, s.stranded_ms,
  s.allocated_ms - s.utilized_ms - s.stranded_ms AS unobserved_ms,
  CAST(s.stranded_ms AS DOUBLE) / CAST(NULLIF(s.utilized_ms + s.stranded_ms, 0) AS DOUBLE) AS stranded_share,
  CAST(s.utilized_ms + s.stranded_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS coverage
FROM sums AS s
ORDER BY s.tier, s.stranded_ms DESC, s.team NULLS LAST, s.product NULLS LAST

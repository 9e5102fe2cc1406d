/* How much did each team hold of each product, and how much of that did it use?

   One row per team and product. Times are whole-GPU-equivalent device-milliseconds of kind owner (A1, A3), split per tier into utilized,
   stranded and unobserved (A2, A5). team is null for time that is unattributed; product is null where the node's inventory does not say it.
   Shares are of the time that was observed, and null where none was; coverage is observed of allocated. */
WITH sums AS (
  SELECT h.team, h.product,
    COUNT(DISTINCT h.pod_uid) AS pods,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(h.busy_utilized_ms) AS BIGINT) AS busy_utilized_ms,
    CAST(SUM(h.busy_stranded_ms) AS BIGINT) AS busy_stranded_ms,
    CAST(SUM(h.sm_utilized_ms) AS BIGINT) AS sm_utilized_ms,
    CAST(SUM(h.sm_stranded_ms) AS BIGINT) AS sm_stranded_ms,
    CAST(SUM(h.effective_utilized_ms) AS BIGINT) AS effective_utilized_ms,
    CAST(SUM(h.effective_stranded_ms) AS BIGINT) AS effective_stranded_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
  GROUP BY h.team, h.product
)
SELECT s.team, s.product, s.pods, s.allocated_ms,
  s.busy_utilized_ms, s.busy_stranded_ms, s.allocated_ms - s.busy_utilized_ms - s.busy_stranded_ms AS busy_unobserved_ms,
  s.sm_utilized_ms, s.sm_stranded_ms, s.allocated_ms - s.sm_utilized_ms - s.sm_stranded_ms AS sm_unobserved_ms,
  s.effective_utilized_ms, s.effective_stranded_ms,
  s.allocated_ms - s.effective_utilized_ms - s.effective_stranded_ms AS effective_unobserved_ms,
  CAST(s.sm_utilized_ms AS DOUBLE) / CAST(NULLIF(s.sm_utilized_ms + s.sm_stranded_ms, 0) AS DOUBLE) AS sm_utilized_share,
  CAST(s.sm_utilized_ms + s.sm_stranded_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS sm_coverage
FROM sums AS s
ORDER BY s.team NULLS LAST, s.product NULLS LAST

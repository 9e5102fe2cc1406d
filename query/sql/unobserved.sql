/* How much of the allocated time did nobody see, and why?

   One row per tier and product. Times are whole-GPU-equivalent device-milliseconds of kind owner (A1); the ten causes are those of A4 and
   sum to unobserved_ms. product is null where the node does not say it; coverage is observed of allocated, null where nothing was. */
WITH tiers AS (
  SELECT 'busy' AS tier, h.product, h.ms, h.busy_utilized_ms + h.busy_stranded_ms AS observed_ms,
    h.busy_unobserved_no_source_ms AS no_source_ms, h.busy_unobserved_no_device_yet_ms AS no_device_yet_ms,
    h.busy_unobserved_handover_ms AS handover_ms, h.busy_unobserved_exporter_down_ms AS exporter_down_ms,
    h.busy_unobserved_stale_ms AS stale_ms, h.busy_unobserved_gap_ms AS gap_ms,
    h.busy_unobserved_field_absent_ms AS field_absent_ms, h.busy_unobserved_sentinel_ms AS sentinel_ms,
    h.busy_unobserved_out_of_range_ms AS out_of_range_ms, h.busy_unobserved_suspect_ms AS suspect_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
UNION ALL
  SELECT 'sm' AS tier, h.product, h.ms, h.sm_utilized_ms + h.sm_stranded_ms AS observed_ms,
    h.sm_unobserved_no_source_ms AS no_source_ms, h.sm_unobserved_no_device_yet_ms AS no_device_yet_ms,
    h.sm_unobserved_handover_ms AS handover_ms, h.sm_unobserved_exporter_down_ms AS exporter_down_ms,
    h.sm_unobserved_stale_ms AS stale_ms, h.sm_unobserved_gap_ms AS gap_ms,
    h.sm_unobserved_field_absent_ms AS field_absent_ms, h.sm_unobserved_sentinel_ms AS sentinel_ms,
    h.sm_unobserved_out_of_range_ms AS out_of_range_ms, h.sm_unobserved_suspect_ms AS suspect_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
UNION ALL
  SELECT 'effective' AS tier, h.product, h.ms, h.effective_utilized_ms + h.effective_stranded_ms AS observed_ms,
    h.effective_unobserved_no_source_ms AS no_source_ms, h.effective_unobserved_no_device_yet_ms AS no_device_yet_ms,
    h.effective_unobserved_handover_ms AS handover_ms, h.effective_unobserved_exporter_down_ms AS exporter_down_ms,
    h.effective_unobserved_stale_ms AS stale_ms, h.effective_unobserved_gap_ms AS gap_ms,
    h.effective_unobserved_field_absent_ms AS field_absent_ms, h.effective_unobserved_sentinel_ms AS sentinel_ms,
    h.effective_unobserved_out_of_range_ms AS out_of_range_ms, h.effective_unobserved_suspect_ms AS suspect_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
), sums AS (
  SELECT t.tier, t.product,
    CAST(SUM(t.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(t.observed_ms) AS BIGINT) AS observed_ms,
    CAST(SUM(t.no_source_ms) AS BIGINT) AS no_source_ms,
    CAST(SUM(t.no_device_yet_ms) AS BIGINT) AS no_device_yet_ms,
    CAST(SUM(t.handover_ms) AS BIGINT) AS handover_ms,
    CAST(SUM(t.exporter_down_ms) AS BIGINT) AS exporter_down_ms,
    CAST(SUM(t.stale_ms) AS BIGINT) AS stale_ms,
    CAST(SUM(t.gap_ms) AS BIGINT) AS gap_ms,
    CAST(SUM(t.field_absent_ms) AS BIGINT) AS field_absent_ms,
    CAST(SUM(t.sentinel_ms) AS BIGINT) AS sentinel_ms,
    CAST(SUM(t.out_of_range_ms) AS BIGINT) AS out_of_range_ms,
    CAST(SUM(t.suspect_ms) AS BIGINT) AS suspect_ms
  FROM tiers AS t
  GROUP BY t.tier, t.product
)
SELECT s.tier, s.product, s.allocated_ms, s.observed_ms, s.allocated_ms - s.observed_ms AS unobserved_ms,
  s.no_source_ms, s.no_device_yet_ms, s.handover_ms, s.exporter_down_ms, s.stale_ms, s.gap_ms, s.field_absent_ms, s.sentinel_ms,
  s.out_of_range_ms, s.suspect_ms,
  CAST(s.observed_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS coverage
FROM sums AS s
ORDER BY s.tier, s.product NULLS LAST

/* How much device memory did each team fill, in GiB-hours?

   One row per team and product. fb_used_mib_ms is frame buffer in use times time, held from each sample on like activity and shared equally
   among the pods of a shared device (A4, A7); DCGM's unit is MiB. It and gib_hours are null where no row has a reading. fb_unobserved_ms is
   holders' time on a device without a reading (of a holder's clock: not weighted by the share held); without_memory_ms is allocated
   time, in whole-GPU-equivalent device-milliseconds (A1), of rows that have no reading at all or no device yet (A16). Neither is 0 MiB. team
   is null for unattributed time. */
WITH sums AS (
  SELECT h.team, h.product,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN h.fb_used_mib_ms IS NULL THEN h.ms ELSE 0 END) AS BIGINT) AS without_memory_ms,
    CAST(SUM(COALESCE(h.fb_unobserved_ms, 0)) AS BIGINT) AS fb_unobserved_ms,
    CAST(SUM(CAST(h.fb_used_mib_ms AS DECIMAL(38, 0))) AS DECIMAL(38, 0)) AS fb_used_mib_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
  GROUP BY h.team, h.product
)
SELECT s.team, s.product, s.allocated_ms, s.without_memory_ms, s.fb_unobserved_ms, s.fb_used_mib_ms,
  CAST(s.fb_used_mib_ms AS DOUBLE) / 3686400000 AS gib_hours
FROM sums AS s
ORDER BY s.team NULLS LAST, s.product NULLS LAST

/* How much of what is paid for in advance did nobody hold?

   One row per provider, region, product and purchase option that is paid for whether or not it is used (reserved and block: the list
   stands in one place). Times are whole-GPU-equivalent device-milliseconds (A1): capacity = allocated + idle + unavailable (A2). Idle is free
   time, net of what is held by number (A16); time that could not be given stands apart as unavailable. No reading is needed for it. Keys are
   null where the node's labels do not say them; idle_share is of capacity. What it costs is the rate card's to say (A14). */
WITH sums AS (
  SELECT h.provider, h.region, h.product, h.purchase_option,
    CAST(SUM(h.ms) AS BIGINT) AS capacity_ms,
    CAST(SUM(CASE WHEN h.kind = 'owner' THEN h.ms ELSE 0 END) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN h.kind = 'unavailable' THEN h.ms ELSE 0 END) AS BIGINT) AS unavailable_ms,
    CAST(SUM(CASE WHEN h.kind = 'free' THEN h.ms ELSE 0 END) AS BIGINT) AS idle_ms
  FROM gpu_hours AS h
  WHERE h.purchase_option IN ('reserved', 'block')
  GROUP BY h.provider, h.region, h.product, h.purchase_option
)
SELECT s.provider, s.region, s.product, s.purchase_option, s.capacity_ms, s.allocated_ms, s.unavailable_ms, s.idle_ms,
  CAST(s.idle_ms AS DOUBLE) / CAST(NULLIF(s.capacity_ms, 0) AS DOUBLE) AS idle_share
FROM sums AS s
ORDER BY s.provider NULLS LAST, s.region NULLS LAST, s.product NULLS LAST, s.purchase_option

/* How much energy did each team's holdings draw, in kWh?

   One row per team and product. energy_mj is the increase of the boards' counters in millijoules, cut at the owners' edges (A10); after a
   reset it is a lower bound. without_energy_ms is allocated time of rows whose energy is not known (no counter, no device yet (A16), or a
   MIG instance, whose lines carry the counter of its whole board), in
   whole-GPU-equivalent device-milliseconds: it is not time at 0 W. energy_mj and kwh are null where no row knows it. What boards drew while
   nobody held them is in no row. team is null for unattributed time. coverage is the allocated time of rows with energy, of all. */
WITH sums AS (
  SELECT h.team, h.product, CAST(SUM(h.energy_mj) AS BIGINT) AS energy_mj,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN h.energy_mj IS NULL THEN h.ms ELSE 0 END) AS BIGINT) AS without_energy_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
  GROUP BY h.team, h.product
)
SELECT s.team, s.product, s.allocated_ms, s.without_energy_ms, s.energy_mj,
  CAST(s.energy_mj AS DOUBLE) / 3600000000 AS kwh,
  CAST(s.allocated_ms - s.without_energy_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS coverage
FROM sums AS s
ORDER BY s.team NULLS LAST, s.product NULLS LAST

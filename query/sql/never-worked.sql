/* Which holders never worked: held GPUs, were seen, and utilized nothing?

   One row per pod (by UID, A9) over the whole lake, the longest holder first. Times are whole-GPU-equivalent device-milliseconds (A1), tier
   sm (A5). A pod that nobody saw is not here: unknown is not idle. coverage says how much of its time was seen; with a low one it may have
   worked unseen. team is null for unattributed pods. */
WITH sums AS (
  SELECT h.cluster, h.pod_uid, MIN(h.namespace) AS namespace, MIN(h.pod) AS pod, MIN(h.workload) AS workload, MIN(h.team) AS team,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(h.sm_utilized_ms) AS BIGINT) AS utilized_ms,
    CAST(SUM(h.sm_stranded_ms) AS BIGINT) AS stranded_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
  GROUP BY h.cluster, h.pod_uid
)
SELECT s.cluster, s.pod_uid, s.namespace, s.pod, s.workload, s.team, s.allocated_ms, s.stranded_ms AS observed_ms,
  s.allocated_ms - s.stranded_ms AS unobserved_ms,
  CAST(s.stranded_ms AS DOUBLE) / CAST(s.allocated_ms AS DOUBLE) AS coverage
FROM sums AS s
WHERE s.allocated_ms > 0 AND s.stranded_ms > 0 AND s.utilized_ms = 0
ORDER BY s.allocated_ms DESC, s.cluster, s.pod_uid

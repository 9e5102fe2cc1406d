/* What share of the allocated time has no team to pay for it, and in which namespaces?

   One row per cluster and namespace, the most unattributed first. Times are whole-GPU-equivalent device-milliseconds of kind owner (A1, A3);
   allocation is the API's word, so it needs no coverage. namespace is null where a holder's is not known. unattributed_share is of
   the namespace's own time, fleet_share of all allocated time; null where that is 0. */
WITH sums AS (
  SELECT h.cluster, h.namespace, COUNT(DISTINCT CASE WHEN h.team IS NULL THEN h.pod_uid END) AS unattributed_pods,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN h.team IS NULL THEN h.ms ELSE 0 END) AS BIGINT) AS unattributed_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner'
  GROUP BY h.cluster, h.namespace
), fleet AS (
  SELECT CAST(SUM(s.allocated_ms) AS BIGINT) AS allocated_ms FROM sums AS s
)
SELECT s.cluster, s.namespace, s.unattributed_pods, s.allocated_ms, s.unattributed_ms,
  CAST(s.unattributed_ms AS DOUBLE) / CAST(NULLIF(s.allocated_ms, 0) AS DOUBLE) AS unattributed_share,
  CAST(s.unattributed_ms AS DOUBLE) / CAST(NULLIF(f.allocated_ms, 0) AS DOUBLE) AS fleet_share
FROM sums AS s
CROSS JOIN fleet AS f
ORDER BY s.unattributed_ms DESC, s.cluster, s.namespace NULLS LAST

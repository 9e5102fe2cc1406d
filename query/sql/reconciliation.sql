/* Where do the API server and the kubelets disagree on who holds what?

   One row per closed hour, node and pod that either knows to hold devices: api_ms is by the scheduler's book (A3), a device for every
   one that is held by number; podres_ms is by the kubelet's pod-resources, a device for every id that the pod lists. Milliseconds of
   devices, not weighted: an instance or a replica is one on both sides. difference_ms is api_ms - podres_ms. A little is natural: a
   kubelet names devices some time after the bind (A16), and drops them some time after the end (A9). found says who knows the pod at
   all: both, api_only (nobody saw its devices: is an agent on its node, and does it reach the socket?) or podres_only (is the pod's
   resource name configured, or the API server's side down?). Largest disagreement first.

   Milliseconds of an instant are its digits: no function for that is common to the engines. Right from 1970 to 2099, the session in UTC. */
WITH timed AS (
  SELECT REPLACE(SUBSTR(CAST(a.from_at AS STRING), 1, 13), 'T', ' ') AS hour_utc, a.cluster, a.node, a.namespace, a.pod, a.source, a.holding_id, a.device, a.replica_ids,
    CAST(COALESCE(a.count, 1) AS BIGINT) AS number,
    86400000 * CAST(EXTRACT(DOY FROM a.from_at) - 1 + 365 * (EXTRACT(YEAR FROM a.from_at) - 1970) + (EXTRACT(YEAR FROM a.from_at) - 1969 - (EXTRACT(YEAR FROM a.from_at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM a.from_at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM a.from_at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(a.from_at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(a.from_at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS from_ms,
    86400000 * CAST(EXTRACT(DOY FROM a.to_at) - 1 + 365 * (EXTRACT(YEAR FROM a.to_at) - 1970) + (EXTRACT(YEAR FROM a.to_at) - 1969 - (EXTRACT(YEAR FROM a.to_at) - 1969) % 4) / 4 AS BIGINT)
    + 3600000 * CAST(EXTRACT(HOUR FROM a.to_at) AS BIGINT) + 60000 * CAST(EXTRACT(MINUTE FROM a.to_at) AS BIGINT)
    + 1000 * CAST(SUBSTR(CAST(a.to_at AS STRING), 18, 2) AS BIGINT)
    + CAST(RPAD(SPLIT_PART(SPLIT_PART(SPLIT_PART(CAST(a.to_at AS STRING), '.', 2), '+', 1), 'Z', 1), 3, '0') AS BIGINT) AS to_ms
  FROM allocations AS a
  WHERE a.source IN ('api', 'podres')
), by_device AS (
  /* Containers of one pod may list the same ids of a device, and each row has all of the pod's ids of it. */
  SELECT t.hour_utc, t.cluster, t.node, t.namespace, t.pod, t.source, COALESCE(t.device, t.holding_id) AS held,
    MAX(CASE
      WHEN t.source = 'api' THEN t.number
      WHEN t.replica_ids IS NULL THEN 1
      ELSE 1 + LENGTH(t.replica_ids) - LENGTH(REPLACE(t.replica_ids, ',', ''))
    END * (t.to_ms - t.from_ms)) AS ms
  FROM timed AS t
  GROUP BY t.hour_utc, t.cluster, t.node, t.namespace, t.pod, t.source, COALESCE(t.device, t.holding_id)
), by_pod AS (
  SELECT d.hour_utc, d.cluster, d.node, d.namespace, d.pod,
    CAST(COALESCE(SUM(CASE WHEN d.source = 'api' THEN d.ms END), 0) AS BIGINT) AS api_ms,
    CAST(COALESCE(SUM(CASE WHEN d.source = 'podres' THEN d.ms END), 0) AS BIGINT) AS podres_ms,
    COUNT(CASE WHEN d.source = 'api' THEN 1 END) AS by_api,
    COUNT(CASE WHEN d.source = 'podres' THEN 1 END) AS by_podres
  FROM by_device AS d
  GROUP BY d.hour_utc, d.cluster, d.node, d.namespace, d.pod
)
SELECT p.hour_utc, p.cluster, p.node, p.namespace, p.pod,
  CASE WHEN p.by_podres = 0 THEN 'api_only' WHEN p.by_api = 0 THEN 'podres_only' ELSE 'both' END AS found,
  p.api_ms, p.podres_ms, p.api_ms - p.podres_ms AS difference_ms
FROM by_pod AS p
ORDER BY ABS(p.api_ms - p.podres_ms) DESC, p.cluster, p.node, p.namespace, p.pod, p.hour_utc

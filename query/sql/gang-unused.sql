/* Which pods with several devices left some of them unused all along?

   One row per pod (by UID, A9) that held two devices or more, of which some worked and some, though seen, never did; most wasted first. Times
   are whole-GPU-equivalent device-milliseconds (A1), tier sm (A5), over the whole lake. unseen_devices had no reading: unknown, not
   unused. Time before the kubelet named a device (A16) is in none of them. coverage is observed of allocated, of the unused devices. Do not
   shrink a gang on this alone: its width is a floor (busy-devices.sql). */
WITH devices AS (
  SELECT h.cluster, h.pod_uid, h.node, h.device, MIN(h.namespace) AS namespace, MIN(h.pod) AS pod, MIN(h.team) AS team,
    CAST(SUM(h.ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(h.sm_utilized_ms) AS BIGINT) AS utilized_ms,
    CAST(SUM(h.sm_utilized_ms + h.sm_stranded_ms) AS BIGINT) AS observed_ms
  FROM gpu_hours AS h
  WHERE h.kind = 'owner' AND h.device IS NOT NULL
  GROUP BY h.cluster, h.pod_uid, h.node, h.device
), pods AS (
  SELECT d.cluster, d.pod_uid, MIN(d.namespace) AS namespace, MIN(d.pod) AS pod, MIN(d.team) AS team,
    COUNT(*) AS devices,
    CAST(SUM(CASE WHEN d.utilized_ms > 0 THEN 1 ELSE 0 END) AS BIGINT) AS worked_devices,
    CAST(SUM(CASE WHEN d.utilized_ms = 0 AND d.observed_ms > 0 THEN 1 ELSE 0 END) AS BIGINT) AS unused_devices,
    CAST(SUM(CASE WHEN d.observed_ms = 0 THEN 1 ELSE 0 END) AS BIGINT) AS unseen_devices,
    CAST(SUM(d.allocated_ms) AS BIGINT) AS allocated_ms,
    CAST(SUM(CASE WHEN d.utilized_ms = 0 AND d.observed_ms > 0 THEN d.allocated_ms ELSE 0 END) AS BIGINT) AS unused_ms,
    CAST(SUM(CASE WHEN d.utilized_ms = 0 AND d.observed_ms > 0 THEN d.observed_ms ELSE 0 END) AS BIGINT) AS unused_observed_ms
  FROM devices AS d
  GROUP BY d.cluster, d.pod_uid
)
SELECT p.cluster, p.pod_uid, p.namespace, p.pod, p.team, p.devices, p.worked_devices, p.unused_devices, p.unseen_devices,
  p.allocated_ms, p.unused_ms, p.unused_observed_ms,
  CAST(p.unused_observed_ms AS DOUBLE) / CAST(NULLIF(p.unused_ms, 0) AS DOUBLE) AS coverage
FROM pods AS p
WHERE p.devices > 1 AND p.worked_devices > 0 AND p.unused_devices > 0
ORDER BY p.unused_ms DESC, p.cluster, p.pod_uid

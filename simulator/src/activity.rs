//! What a device does at one level of work, and how far its noise may carry it.

/// What a GPU does in a phase, before its board's constants come in. Ratios in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// GPU_UTIL in percent: base, and the step of its noise (3 up, 3 down).
    pub util_pct: i64,
    pub util_step: i64,
    /// GR_ENGINE_ACTIVE; its noise is SM_ACTIVE's.
    pub gr: i64,
    /// SM_ACTIVE: base, and the step of its noise (10 up, 10 down).
    pub sm: i64,
    pub sm_step: i64,
    /// PIPE_TENSOR_ACTIVE.
    pub tensor: i64,
    pub tensor_step: i64,
    /// DRAM_ACTIVE; multiples of 4, at most 800,000, so that its fifth quarters are whole.
    pub dram: i64,
    pub dram_step: i64,
    /// SM_OCCUPANCY and the arithmetic pipes, in permille of SM_ACTIVE.
    pub occupancy_pm: i64,
    pub fp32_pm: i64,
    pub fp16_pm: i64,
    pub fp64_pm: i64,
    /// Memory used, permille of what the driver leaves.
    pub memory_pm: i64,
    /// PCIe out of and into the GPU, kB/s.
    pub pcie_tx: i64,
    pub pcie_rx: i64,
    /// NVLink, one direction, in permille of the links.
    pub nvlink_pm: i64,
    /// A process holds the device.
    pub resident: bool,
}

/// Noise steps of SM_ACTIVE and its like: drawn from -10 to 10.
pub(crate) const NOISE: i64 = 10;
/// Noise steps of GPU_UTIL: drawn from -3 to 3.
pub(crate) const UTIL_NOISE: i64 = 3;

impl Activity {
    /// A level that keeps to the inequalities at every draw of the noise: `0 <= tensor <= sm <= gr <= 1`, `sm <= util`,
    /// and one of tensor and DRAM decides the effective tier throughout.
    pub fn new(util_pct: i64, sm: i64, tensor: i64, dram: i64, noise_pm: i64) -> Self {
        let sm = sm.clamp(0, 960_000);
        let gr = (sm + sm / 20).min(980_000);
        let sm_step = (sm * noise_pm / 1000 / NOISE).min((1_000_000 - gr) / NOISE).min(sm / NOISE);
        let tensor = tensor.clamp(0, sm);
        let mut tensor_step = if sm == 0 { 0 } else { sm_step * tensor / sm };
        let mut dram = dram.clamp(0, 760_000) / 4 * 4;
        let mut dram_step = (dram * noise_pm / 1000 / NOISE).min((800_000 - dram) / NOISE).min(dram / NOISE) / 4 * 4;
        let lead = |q: i64| (tensor + tensor_step * q) - (dram + dram_step * q) * 5 / 4;
        if (lead(NOISE) > 0) != (lead(-NOISE) > 0) {
            // Too close to call: make it plain.
            dram = (tensor / 2) / 4 * 4;
            dram_step = 0;
            if tensor_step * NOISE > tensor / 4 {
                tensor_step = 0;
            }
        }
        let highest_sm_pct = (sm + sm_step * NOISE + 9_999) / 10_000;
        let util_pct = util_pct.clamp(highest_sm_pct, 100);
        let util_step = ((100 - util_pct) / UTIL_NOISE).min((util_pct - highest_sm_pct) / UTIL_NOISE).clamp(0, 4);
        Self {
            util_pct,
            util_step,
            gr,
            sm,
            sm_step,
            tensor,
            tensor_step,
            dram,
            dram_step,
            occupancy_pm: 380,
            fp32_pm: 120,
            fp16_pm: 60,
            fp64_pm: 0,
            resident: true,
            ..Self::default()
        }
    }

    /// A process that waits: its memory is held, nothing else.
    pub fn waiting(memory_pm: i64) -> Self {
        Self { memory_pm, resident: true, ..Self::default() }
    }

    /// What a device with `replicas` does for several pods at once: one alone has all of it; together they take turns, so
    /// that their activities add up until there is no more time. Each may hold its replica's part of the memory.
    pub fn together(pods: &[Self], replicas: i64) -> Self {
        let memory_pm = pods.iter().map(|pod| pod.memory_pm / replicas).sum();
        let busy: Vec<&Self> = pods.iter().filter(|pod| pod.util_pct > 0).collect();
        let resident = pods.iter().any(|pod| pod.resident);
        let one = match busy.as_slice() {
            [] => return Self { memory_pm, resident, ..Self::default() },
            [only] => return Self { memory_pm, nvlink_pm: 0, ..**only },
            [first, ..] => **first,
        };
        let sum = |of: fn(&Self) -> i64| busy.iter().map(|pod| of(pod)).sum::<i64>();
        let wanted = sum(|pod| pod.sm).max(1);
        // Switching between processes costs a little: together they do not fill what one alone could.
        let given = wanted.min(900_000);
        let part = |of: fn(&Self) -> i64| sum(of) * given / wanted;
        Self {
            memory_pm,
            nvlink_pm: 0,
            pcie_tx: part(|pod| pod.pcie_tx),
            pcie_rx: part(|pod| pod.pcie_rx),
            fp32_pm: one.fp32_pm,
            fp16_pm: one.fp16_pm,
            fp64_pm: one.fp64_pm,
            ..Self::new(sum(|pod| pod.util_pct).min(100), given, part(|pod| pod.tensor), part(|pod| pod.dram), 60)
        }
    }

    /// The effective tier's activity at noise `q`: the larger of tensor pipe and DRAM over 0.8.
    pub fn effective(&self, q: i64) -> i64 {
        (self.tensor + self.tensor_step * q).max((self.dram + self.dram_step * q) / 4 * 5)
    }
}

//! The driver's library, initialised, and what GPUs and MIG instances it shows.

use std::{
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use nvml_wrapper::{Device, Nvml, enum_wrappers::device::InfoRom, error::NvmlError};

use super::{
    fault::{Fault, Kind},
    raw,
};

/// Most GPUs of a node, and most MIG instances of a GPU, that are looked at.
const MOST_GPUS: u32 = 64;
const MOST_INSTANCES: u32 = 16;

/// The library between its initialisation and its shutdown, which is when the last user drops this.
#[derive(Debug)]
pub struct Session {
    /// The library.
    pub nvml: ManuallyDrop<Nvml>,
    /// Its users are to leave.
    over: AtomicBool,
    /// How often its devices have changed.
    changes: AtomicU64,
}

/// Why the driver cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such library.
    #[error(
        "cannot load {}; install the NVIDIA driver, mount its library into the container (the nvidia runtime class does), \
         or name it by --strandline-nvml-library",
        path.display()
    )]
    Library {
        /// What was looked for.
        path: PathBuf,
        /// What the loader says.
        #[source]
        err: NvmlError,
    },
    /// The library is there, and does not work.
    #[error(
        "{} does not start ({code}); is the driver loaded, is the library of its version, and may this process open /dev/nvidiactl?",
        path.display()
    )]
    Driver {
        /// The library.
        path: PathBuf,
        /// NVML's code.
        code: &'static str,
        /// What nvml-wrapper says.
        #[source]
        err: NvmlError,
    },
}

impl OpenError {
    /// NVML's code, or the name of what stands for one.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Library { .. } => "LIBRARY_NOT_FOUND",
            Self::Driver { code, .. } => code,
        }
    }
}

impl Session {
    /// Loads and initialises the library at `path`, or of that name on the loader's path.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let opened = Nvml::builder().lib_path(path.as_os_str()).init();
        let owned = || path.to_owned();
        match opened {
            Ok(nvml) => Ok(Self { nvml: ManuallyDrop::new(nvml), over: AtomicBool::new(false), changes: AtomicU64::new(0) }),
            Err(err @ NvmlError::LibloadingError(_)) => Err(OpenError::Library { path: owned(), err }),
            Err(err) => Err(OpenError::Driver { path: owned(), code: Fault::from(&err).code, err }),
        }
    }

    /// Asks its users to leave.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Notes that its devices have changed.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// How often they have.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether they are to.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A library without nvmlShutdown, which none is, stays open.
        if raw::shuts_down(&self.nvml) {
            raw::drop_once(&mut self.nvml);
        }
    }
}

/// A GPU as the library shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGpu {
    /// UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// Number of its device file.
    pub minor: Option<u32>,
    /// PCI address with an 8-digit domain.
    pub pci: String,
    /// Product.
    pub model: String,
    /// Texts by DCGM field id, of those that were asked for.
    pub texts: Vec<(u16, String)>,
    /// Its MIG instances, by GPU instance id.
    pub parts: Vec<FoundPart>,
}

/// A MIG device: a compute instance of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPart {
    /// UUID of its own.
    pub uuid: Option<String>,
    /// GPU instance id.
    pub gi: u32,
    /// Compute instance id.
    pub ci: u32,
    /// Profile of the GPU instance, `1g.10gb`.
    pub profile: String,
    /// Its place among the GPU's MIG devices.
    pub index: u32,
}

/// What the library shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// GPUs that could be read, by index.
    pub gpus: Vec<FoundGpu>,
    /// GPUs that are counted and cannot be read: index, and NVML's code.
    pub unreadable: Vec<(u32, &'static str)>,
}

/// Takes the census, with the texts of the fields in `texts`. What cannot be told of a GPU that `before` knows is as it was then.
pub fn census(session: &Session, texts: &[u16], before: &[FoundGpu]) -> Result<Census, Fault> {
    let count = session.nvml.device_count().map_err(Fault::from)?;
    let mut census = Census::default();
    for index in 0..count.min(MOST_GPUS) {
        match session.nvml.device_by_index(index).map_err(Fault::from).and_then(|device| gpu(&device, index, texts, before)) {
            Ok(gpu) => census.gpus.push(gpu),
            Err(fault) if fault.kind == Kind::DriverGone => return Err(fault),
            Err(fault) => census.unreadable.push((index, fault.code)),
        }
    }
    Ok(census)
}

fn gpu(device: &Device, index: u32, texts: &[u16], before: &[FoundGpu]) -> Result<FoundGpu, Fault> {
    let uuid = device.uuid()?;
    let known = before.iter().find(|gpu| gpu.uuid == uuid);
    /// What was told; what is not told for now is as it was.
    fn told<T: Clone + Default>(answer: Result<T, Fault>, known: Option<&T>) -> Result<T, Fault> {
        match answer {
            Ok(told) => Ok(told),
            Err(fault) if matches!(fault.kind, Kind::DeviceLost | Kind::DriverGone) => Err(fault),
            Err(_) => Ok(known.cloned().unwrap_or_default()),
        }
    }
    Ok(FoundGpu {
        index,
        minor: told(device.minor_number().map(Some).map_err(Fault::from), known.map(|gpu| &gpu.minor))?,
        pci: told(device.pci_info().map(|pci| pci.bus_id).map_err(Fault::from), known.map(|gpu| &gpu.pci))?,
        model: told(device.name().map_err(Fault::from), known.map(|gpu| &gpu.model))?,
        texts: match known {
            // Versions do not change while a driver is loaded.
            Some(gpu) => gpu.texts.clone(),
            None => texts.iter().filter_map(|field| Some((*field, text(device, *field)?))).collect(),
        },
        parts: told(parts(device), known.map(|gpu| &gpu.parts))?,
        uuid,
    })
}

/// The GPU's MIG devices; none where MIG is off, or there is no MIG.
fn parts(device: &Device) -> Result<Vec<FoundPart>, Fault> {
    match device.mig_mode() {
        Ok(mode) if mode.current == 1 => {}
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::NoPermission) => {
            return Ok(Vec::new());
        }
        Err(err) => return Err(err.into()),
    }
    let most = device.mig_device_count().unwrap_or(MOST_INSTANCES).min(MOST_INSTANCES);
    let mut parts = Vec::new();
    for index in 0..most {
        let part = match device.mig_device_by_index(index) {
            Ok(part) => part,
            // Places without an instance.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            Err(err) => return Err(err.into()),
        };
        let (gi, ci) = raw::instance_ids(&part)?;
        let profile = part.name().ok().and_then(|name| profile(&name)).unwrap_or_else(|| sized(&part));
        parts.push(FoundPart { uuid: part.uuid().ok(), gi, ci, profile, index });
    }
    parts.sort_by_key(|part| (part.gi, part.ci));
    Ok(parts)
}

/// Profile of the GPU instance in a MIG device's name, `NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb`: of a compute instance that is less
/// than its GPU instance the first part is its own.
fn profile(name: &str) -> Option<String> {
    let (_, profile) = name.rsplit_once(" MIG ")?;
    let rest = match profile.split_once('.') {
        Some((own, rest)) if own.ends_with('c') && own[..own.len() - 1].bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => profile,
    };
    (rest.contains("g.")).then(|| rest.to_owned())
}

/// The profile's name by its slices and memory, for drivers whose names do not tell it.
fn sized(part: &Device) -> String {
    match part.attributes() {
        Ok(attributes) => {
            // Sizes in profiles' names are GB rounded up from somewhat less.
            let gb = attributes.memory_size_mb.div_ceil(1024);
            format!("{}g.{gb}gb", attributes.gpu_instance_slice_count)
        }
        Err(_) => String::new(),
    }
}

/// A text by DCGM field id; none where the device has it not.
fn text(device: &Device, field: u16) -> Option<String> {
    let nvml = device.nvml();
    let text = match field {
        1 => nvml.sys_driver_version().ok(),
        2 => nvml.sys_nvml_version().ok(),
        50 => device.name().ok(),
        51 => device.brand().ok().map(|brand| format!("{brand:?}")),
        53 => device.serial().ok(),
        54 => device.uuid().ok(),
        56 => device.info_rom_version(InfoRom::OEM).ok(),
        57 => device.pci_info().ok().map(|pci| pci.bus_id),
        80 => device.info_rom_version(InfoRom::ECC).ok(),
        81 => device.info_rom_version(InfoRom::Power).ok(),
        82 => device.info_rom_image_version().ok(),
        85 => device.vbios_version().ok(),
        _ => None,
    };
    text.filter(|text| !text.is_empty())
}

/// Fields that can be had as texts.
pub const TEXTS: [u16; 12] = [1, 2, 50, 51, 53, 54, 56, 57, 80, 81, 82, 85];

/// PCI addresses of NVIDIA's display and 3D controllers below `sysfs`, sorted; none where the folder cannot be read.
pub fn on_the_bus(sysfs: &Path) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(sysfs.join("bus/pci/devices")).ok()?.take(4096).flatten() {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        // Class 03: display controllers, 3D controllers (0302) among them.
        if read("vendor").trim() == "0x10de" && read("class").trim().starts_with("0x03") {
            found.push(entry.file_name().to_string_lossy().to_lowercase());
        }
    }
    found.sort();
    Some(found)
}

/// Whether a PCI address as NVML has it (`00000000:1B:00.0`) is one of sysfs' (`0000:1b:00.0`).
pub fn same_address(nvml: &str, sysfs: &str) -> bool {
    let parts = |address: &str| -> Option<(u32, String)> {
        let (domain, rest) = address.split_once(':')?;
        Some((u32::from_str_radix(domain, 16).ok()?, rest.to_lowercase()))
    };
    parts(nvml).is_some() && parts(nvml) == parts(sysfs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_profile_is_the_gpu_instances() {
        let of = |name: &str| profile(name);
        assert_eq!(of("NVIDIA H100 80GB HBM3 MIG 1g.10gb").as_deref(), Some("1g.10gb"));
        assert_eq!(of("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb").as_deref(), Some("3g.20gb"));
        assert_eq!(of("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me").as_deref(), Some("1g.10gb+me"));
        assert_eq!((of("NVIDIA H100 80GB HBM3"), of("X MIG odd")), (None, None));
    }

    #[test]
    fn addresses_are_compared_as_numbers() {
        assert!(same_address("00000000:1B:00.0", "0000:1b:00.0"));
        assert!(!same_address("00000001:1B:00.0", "0000:1b:00.0"));
        assert!(!same_address("", ""));
    }

    #[test]
    fn gpus_on_the_bus_are_nvidias_display_controllers() {
        let sysfs = std::env::temp_dir().join(format!("exporter-sysfs-{}", std::process::id()));
        for (address, vendor, class) in [
            ("0000:1b:00.0", "0x10de", "0x030200"),
            ("0000:1B:00.1", "0x10de", "0x040300"),
            ("0000:00:02.0", "0x8086", "0x030000"),
            ("0000:0a:00.0", "0x10de", "0x030000"),
        ] {
            let folder = sysfs.join("bus/pci/devices").join(address);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
            std::fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        }
        assert_eq!(on_the_bus(&sysfs).unwrap(), ["0000:0a:00.0", "0000:1b:00.0"]);
        std::fs::remove_dir_all(&sysfs).unwrap();
        assert_eq!(on_the_bus(&sysfs), None);
    }
}

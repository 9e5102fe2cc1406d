//! What an answer of the driver's library other than a value means for the question, the device and the driver.

use nvml_wrapper::error::NvmlError;

/// Why a question has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// NVML's name of the code, without `NVML_ERROR_`; what is not a code has a name alike. One of a bounded set.
    pub code: &'static str,
    /// What follows from it.
    pub kind: Kind,
}

/// What follows from a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The device does not give this: not asked again until the topology changes.
    Missing,
    /// No value this time; asked again in the next round.
    Failed,
    /// The device does not answer at all.
    DeviceLost,
    /// Handles are of no use any more: the driver was unloaded, or exchanged.
    DriverGone,
}

impl Fault {
    /// A value that is there but cannot be: not finite, below zero where that means nothing, of a type unknown.
    pub const BAD_VALUE: Self = Self { code: "BAD_VALUE", kind: Kind::Failed };
    /// A function that this version of the library has not.
    pub const NO_FUNCTION: Self = Self { code: "FUNCTION_NOT_FOUND", kind: Kind::Missing };
    /// The device does not have it.
    pub const NOT_SUPPORTED: Self = Self { code: "NOT_SUPPORTED", kind: Kind::Missing };

    /// The same fault of one entry of a call that succeeded: an argument that the library does not know is a field that the
    /// driver has not.
    pub fn of_entry(error: NvmlError) -> Self {
        match error {
            NvmlError::InvalidArg => Self { code: "INVALID_ARGUMENT", kind: Kind::Missing },
            error => Self::from(error),
        }
    }
}

impl From<NvmlError> for Fault {
    fn from(error: NvmlError) -> Self {
        Self::from(&error)
    }
}

impl From<&NvmlError> for Fault {
    #[allow(deprecated)]
    fn from(error: &NvmlError) -> Self {
        use Kind::{DeviceLost, DriverGone, Failed, Missing};
        use NvmlError as E;
        let (code, kind) = match error {
            E::NotSupported => ("NOT_SUPPORTED", Missing),
            E::NoPermission => ("NO_PERMISSION", Missing),
            E::NotFound => ("NOT_FOUND", Missing),
            E::FunctionNotFound | E::FailedToLoadSymbol(_) => ("FUNCTION_NOT_FOUND", Missing),
            E::UnexpectedVariant(25) => ("ARGUMENT_VERSION_MISMATCH", Missing),
            E::UnexpectedVariant(26) => ("DEPRECATED", Missing),
            E::VgpuEccNotSupported => ("VGPU_ECC_NOT_SUPPORTED", Missing),
            E::CorruptedInfoROM => ("CORRUPTED_INFOROM", Missing),
            E::GpuLost => ("GPU_IS_LOST", DeviceLost),
            E::ResetRequired => ("RESET_REQUIRED", DeviceLost),
            E::Uninitialized => ("UNINITIALIZED", DriverGone),
            E::DriverNotLoaded => ("DRIVER_NOT_LOADED", DriverGone),
            E::LibRmVersionMismatch => ("LIB_RM_VERSION_MISMATCH", DriverGone),
            E::LibraryNotFound | E::LibloadingError(_) => ("LIBRARY_NOT_FOUND", DriverGone),
            E::InvalidArg => ("INVALID_ARGUMENT", Failed),
            E::AlreadyInitialized => ("ALREADY_INITIALIZED", Failed),
            E::InsufficientSize(_) => ("INSUFFICIENT_SIZE", Failed),
            E::InsufficientPower => ("INSUFFICIENT_POWER", Failed),
            E::Timeout => ("TIMEOUT", Failed),
            E::IrqIssue => ("IRQ_ISSUE", Failed),
            E::OperatingSystem => ("OPERATING_SYSTEM", Failed),
            E::InUse => ("IN_USE", Failed),
            E::InsufficientMemory => ("MEMORY", Failed),
            E::NoData => ("NO_DATA", Failed),
            E::UnexpectedVariant(23) => ("INSUFFICIENT_RESOURCES", Failed),
            E::UnexpectedVariant(24) => ("FREQ_NOT_SUPPORTED", Failed),
            E::UnexpectedVariant(27) => ("NOT_READY", Failed),
            E::UnexpectedVariant(28) => ("GPU_NOT_FOUND", Failed),
            E::UnexpectedVariant(29) => ("INVALID_STATE", Failed),
            E::UnexpectedVariant(30) => ("RESET_TYPE_NOT_SUPPORTED", Failed),
            E::Unknown | E::UnexpectedVariant(_) => ("UNKNOWN", Failed),
            E::Utf8Error(_)
            | E::NulError(_)
            | E::StringTooLong { .. }
            | E::IncorrectBits(_)
            | E::SetReleaseFailed
            | E::GetPciInfoFailed
            | E::PciInfoToCFailed => ("BAD_VALUE", Failed),
        };
        Self { code, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of the header, and one of a driver yet to come.
    #[test]
    fn every_code_has_a_name_and_a_meaning() {
        let of = |number: u32| Fault::from(NvmlError::from(number));
        assert_eq!(of(3), Fault::NOT_SUPPORTED);
        assert_eq!(of(15), Fault { code: "GPU_IS_LOST", kind: Kind::DeviceLost });
        assert_eq!(of(18), Fault { code: "LIB_RM_VERSION_MISMATCH", kind: Kind::DriverGone });
        assert_eq!(of(27), Fault { code: "NOT_READY", kind: Kind::Failed });
        assert_eq!(of(4711), Fault { code: "UNKNOWN", kind: Kind::Failed });
        let names: std::collections::BTreeSet<_> = (1..=30).map(|number| of(number).code).collect();
        assert_eq!(names.len(), 30, "no two codes have one name: {names:?}");
        assert_eq!((of(2).kind, Fault::of_entry(NvmlError::InvalidArg).kind), (Kind::Failed, Kind::Missing));
    }
}

//! Return codes of NVML.

/// What an NVML function returns, 0 for success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Code(pub u32);

/// Number, name in the header without its beginning, and text as `nvmlErrorString` gives it.
type Known = (u32, &'static str, &'static std::ffi::CStr);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($number);)*
        }

        const KNOWN: &[Known] = &[$(($number, stringify!($name), $text)),*];
    };
}

codes! {
    /// It went well.
    SUCCESS = 0, c"Success";
    /// `nvmlInit` was not called, or a shutdown was since.
    UNINITIALIZED = 1, c"Uninitialized";
    /// An argument is null, out of range or of no meaning.
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    /// The device cannot say or do this.
    NOT_SUPPORTED = 3, c"Not Supported";
    /// The caller may not.
    NO_PERMISSION = 4, c"Insufficient Permissions";
    /// No longer given.
    ALREADY_INITIALIZED = 5, c"Already Initialized";
    /// There is no such thing.
    NOT_FOUND = 6, c"Not Found";
    /// The caller's buffer is too small.
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    /// A power cable is missing.
    INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    /// The kernel's driver is not there.
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    /// Nothing came in time.
    TIMEOUT = 10, c"Timeout";
    /// An interrupt could not be had.
    IRQ_ISSUE = 11, c"Interrupt Request Issue";
    /// The library is not there.
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    /// The library has no such function.
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    /// The infoROM is damaged.
    CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    /// The device fell off the bus or does not answer.
    GPU_IS_LOST = 15, c"GPU is lost";
    /// The device must be reset.
    RESET_REQUIRED = 16, c"GPU requires reset";
    /// The operating system refuses.
    OPERATING_SYSTEM = 17, c"The operating system has blocked the request";
    /// Library and kernel's driver are of two versions.
    LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    /// The device is in use.
    IN_USE = 19, c"GPU is in use";
    /// No memory.
    MEMORY = 20, c"Insufficient Memory";
    /// No data.
    NO_DATA = 21, c"No data";
    /// ECC is off for vGPUs.
    VGPU_ECC_NOT_SUPPORTED = 22, c"The requested vgpu operation is not available because ECC is enabled";
    /// Something that there is a limited number of has run out.
    INSUFFICIENT_RESOURCES = 23, c"Insufficient resources";
    /// No such clock.
    FREQ_NOT_SUPPORTED = 24, c"Frequency not supported";
    /// A struct's version is not one that the function knows.
    ARGUMENT_VERSION_MISMATCH = 25, c"The provided version is invalid or unsupported";
    /// The function is of the past.
    DEPRECATED = 26, c"The requested functionality has been deprecated";
    /// The system is not ready.
    NOT_READY = 27, c"The system is not ready for the request";
    /// No GPU.
    GPU_NOT_FOUND = 28, c"No GPUs were found";
    /// Not now.
    INVALID_STATE = 29, c"Resource not in correct state to perform requested operation";
    /// Not this reset.
    RESET_TYPE_NOT_SUPPORTED = 30, c"Reset not supported for given device/parameters";
    /// Whatever else.
    UNKNOWN = 999, c"Unknown Error";
}

impl Code {
    /// The code of a name (`GPU_IS_LOST`, with or without `NVML_ERROR_` before it) or of a number.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_prefix("NVML_ERROR_").unwrap_or(text);
        let known = KNOWN.iter().find(|(_, known, _)| *known == name).map(|(number, ..)| Self(*number));
        known.or_else(|| text.parse().ok().map(Self))
    }

    /// Names of all codes, without `NVML_ERROR_`.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(_, name, _)| *name)
    }

    /// Its text, as `nvmlErrorString` gives it.
    pub fn text(self) -> &'static std::ffi::CStr {
        KNOWN.iter().find(|(number, ..)| *number == self.0).map_or(c"Unknown Error", |(.., text)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_by_name_and_by_number() {
        assert_eq!(Code::parse("GPU_IS_LOST"), Some(Code::GPU_IS_LOST));
        assert_eq!(Code::parse("NVML_ERROR_UNKNOWN"), Some(Code(999)));
        assert_eq!(Code::parse("4711"), Some(Code(4711)));
        assert_eq!(Code::parse("LOST"), None);
        assert_eq!((Code(15).text(), Code(4711).text()), (c"GPU is lost", c"Unknown Error"));
    }
}

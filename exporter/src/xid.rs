//! Texts of XID codes, as NVIDIA's list of XIDs calls them.

use crate::source::Value;

/// The code that a reading of XID_ERRORS is.
pub(crate) const fn code(value: Value) -> i64 {
    match value {
        Value::Int(code) => code,
        Value::Float(code) => code as i64,
    }
}

/// What XID `code` means, for the label `err_msg`. Codes that we have no text for read `Unknown Error`.
pub const fn message(code: i64) -> &'static str {
    match code {
        0 => "No Error",
        8 | 43 | 46 => "GPU stopped processing",
        13 => "Graphics Engine Exception",
        24 => "GPU semaphore timeout",
        31 => "GPU memory page fault",
        32 => "Invalid or corrupted push buffer stream",
        44 => "Graphics Engine fault during context switch",
        45 => "Preemptive cleanup, due to previous errors -- Most likely to see when running multiple cuda",
        48 => "Double Bit ECC Error",
        61 => "Internal micro-controller breakpoint/warning",
        62 => "Internal micro-controller halt",
        63 => "ECC page retirement or row remapping recording event",
        64 => "ECC page retirement or row remapper recording failure",
        69 => "Graphics Engine class error",
        74 => "NVLINK Error",
        79 => "GPU has fallen off the bus",
        92 => "High single-bit ECC error rate",
        94 => "Contained ECC error",
        95 => "Uncontained ECC error",
        109 => "Context Switch Timeout Error",
        119 => "GSP RPC Timeout",
        120 => "GSP Error",
        140 => "Unrecovered ECC Error",
        143 => "GPU Initialization Failure",
        154 => "GPU Recovery Action Changed",
        _ => "Unknown Error",
    }
}

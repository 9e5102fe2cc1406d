//! The C functions: each takes its arguments apart, and says what safe code says.

mod device;
mod events;
mod links;
mod memory;
mod mig;
mod processes;
mod system;

/// Functions about the node, about a device, about an instance: name, arguments, what they come to.
///
/// `node name(arguments) |session| ...`, `device name(arguments after the handle) |view| ...`; a body is an `Answer`.
macro_rules! entries {
    () => {};
    (node $name:ident($($arg:ident: $type:ty),* $(,)?) |$session:pat_param| $body:expr; $($rest:tt)*) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> u32 {
            $crate::library::call(stringify!($name), |$session| $body)
        }
        $crate::calls::entries! { $($rest)* }
    };
    (device $name:ident($($arg:ident: $type:ty),* $(,)?) |$view:pat_param| $body:expr; $($rest:tt)*) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: $crate::abi::Handle, $($arg: $type),*) -> u32 {
            $crate::library::on(stringify!($name), device, |$view| $body)
        }
        $crate::calls::entries! { $($rest)* }
    };
    (gpu_instance $name:ident($($arg:ident: $type:ty),* $(,)?) |$view:pat_param| $body:expr; $($rest:tt)*) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(instance: $crate::abi::Handle, $($arg: $type),*) -> u32 {
            $crate::library::on_gpu_instance(stringify!($name), instance, |$view| $body)
        }
        $crate::calls::entries! { $($rest)* }
    };
    (compute_instance $name:ident($($arg:ident: $type:ty),* $(,)?) |$view:pat_param| $body:expr; $($rest:tt)*) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(instance: $crate::abi::Handle, $($arg: $type),*) -> u32 {
            $crate::library::on_compute_instance(stringify!($name), instance, |$view| $body)
        }
        $crate::calls::entries! { $($rest)* }
    };
}
use entries;

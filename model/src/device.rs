//! Where a model computes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use candle_core::Device;

use crate::error::{Cause, ModelError};

/// A device by its name in a configuration: `cpu`, or `cuda:N` for an NVIDIA GPU, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceName {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU by its number.
    Cuda(usize),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl FromStr for DeviceName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let number =
            || text.strip_prefix("cuda:").filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        match number().and_then(|digits| digits.parse().ok()) {
            Some(number) => Ok(Self::Cuda(number)),
            None if text == "cpu" => Ok(Self::Cpu),
            None => Err(ModelError::invalid(format!("a device is `cpu` or `cuda:N`, not: {text}"))),
        }
    }
}

/// GPUs that are open, by their numbers.
static OPENED: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());

impl DeviceName {
    /// Opens the device; a GPU once in the process, so that all that is computed on it is in one order.
    ///
    /// # Errors
    /// [`ModelError::NoCuda`] for a GPU if the program was built without the feature `cuda`; [`ModelError::Device`] if
    /// there is no such device, or its driver is missing.
    pub fn open(self) -> Result<Device, ModelError> {
        let Self::Cuda(number) = self else { return Ok(Device::Cpu) };
        if !cfg!(feature = "cuda") {
            return Err(ModelError::NoCuda { name: self.to_string() });
        }
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = opened.iter().find(|(other, _)| *other == number) {
            return Ok(device.clone());
        }
        let device = self.unopened(|| Device::new_cuda_with_stream(number))?;
        opened.push((number, device.clone()));
        Ok(device)
    }

    /// Calls what opens a device.
    ///
    /// The stream is one of its own: the default one is another for each thread, and what threads compute in turn, as an
    /// engine does, would not be in order.
    fn unopened(self, open: impl FnOnce() -> candle_core::Result<Device>) -> Result<Device, ModelError> {
        let failed = |source: Cause| ModelError::Device { name: self.to_string(), source };
        // Where the driver's library is loaded at run time and is missing, the bindings panic instead of failing. Nothing
        // has been made then that could be left half done.
        match catch_unwind(AssertUnwindSafe(open)) {
            Ok(opened) => opened.map_err(|error| failed(error.into())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Err(failed(text.unwrap_or("the driver's bindings gave up").into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [DeviceName::Cpu, DeviceName::Cuda(0), DeviceName::Cuda(13)] {
            assert_eq!(name.to_string().parse::<DeviceName>().unwrap(), name);
        }
        for text in
            ["", "gpu", "CPU", "cuda", "cuda:", "cuda:x", "cuda:+1", "cuda:-1", "cuda:99999999999999999999"]
        {
            let error = text.parse::<DeviceName>().unwrap_err();
            assert_eq!(error.to_string(), format!("a device is `cpu` or `cuda:N`, not: {text}"));
        }
    }

    #[test]
    fn what_cannot_be_opened_is_an_error_not_a_panic() {
        let name = DeviceName::Cuda(3);
        let reason = |error: &ModelError| std::error::Error::source(error).unwrap().to_string();
        let refused =
            name.unopened(|| Err(candle_core::Error::Msg("no such device".to_owned()))).unwrap_err();
        assert_eq!(refused.to_string(), "cannot open the device: cuda:3");
        assert_eq!(reason(&refused), "no such device");
        let panicked = name.unopened(|| std::panic::panic_any("no libcuda".to_owned())).unwrap_err();
        assert_eq!((panicked.to_string(), reason(&panicked)), (refused.to_string(), "no libcuda".to_owned()));
        assert!(panicked.hint().unwrap().contains("nvidia-smi"));
    }

    #[test]
    fn a_program_without_cuda_says_so() {
        assert!(DeviceName::Cpu.open().unwrap().is_cpu());
        // With the feature, a machine without a GPU refuses it too, for another reason.
        let Err(error) = DeviceName::Cuda(999).open() else { panic!("there is no such device") };
        if cfg!(feature = "cuda") {
            assert_eq!(error.to_string(), "cannot open the device: cuda:999");
        } else {
            let expected = "this program was built without CUDA, which it needs for the device: cuda:999";
            assert_eq!(error.to_string(), expected);
            assert!(error.hint().unwrap().contains("--features cuda"));
        }
    }
}

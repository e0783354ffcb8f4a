//! Where a model runs, and how much memory is free there.
//!
//! The CPU runs on our own kernels; CUDA and Metal on candle's tensors, behind cargo features. A
//! device that this build or this machine lacks is an error that says which.

use std::fmt;
use std::str::FromStr;

use crate::decoder::kernel_error;
use crate::{Error, Result};

pub use kernels::MachineLimits;
pub use kernels::limits::THREADS_MAX;

/// A device to load a model to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu { threads: usize },
    Cuda { ordinal: usize },
    Metal { ordinal: usize },
}

impl Device {
    /// The CPU with a thread for each physical core that this process may use. Two threads on one core
    /// share its multipliers, and the second only gets in the way.
    pub fn cpu() -> Self {
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cores::physical().map_or(allowed, |cores| cores.min(allowed));
        Device::Cpu {
            threads: threads.min(THREADS_MAX),
        }
    }

    /// Bytes free for weights and KV, `None` where the system does not tell.
    pub fn available_bytes(&self) -> Option<u64> {
        match *self {
            Device::Cpu { .. } => memory::available_bytes(),
            Device::Cuda { ordinal } => cuda_available_bytes(ordinal),
            // Metal shares the machine's memory.
            Device::Metal { .. } => memory::available_bytes(),
        }
    }

    /// Measures what the device could do at best; `None` for GPUs.
    ///
    /// # Errors
    /// Blames the device when threads or memory for the measurement are refused.
    pub fn limits(&self) -> Result<Option<MachineLimits>> {
        let Device::Cpu { threads } = *self else {
            return Ok(None);
        };
        let pool = kernels::ThreadPool::new(threads).map_err(kernel_error)?;
        kernels::probe(&pool).map(Some).map_err(kernel_error)
    }

    /// candle's handle for a CUDA or Metal device.
    pub(crate) fn candle(&self) -> Result<candle_core::Device> {
        let (made, feature) = match *self {
            Device::Cpu { .. } => return Ok(candle_core::Device::Cpu),
            Device::Cuda { ordinal } => (candle_core::Device::new_cuda(ordinal), "cuda"),
            Device::Metal { ordinal } => (candle_core::Device::new_metal(ordinal), "metal"),
        };
        made.map_err(|error| {
            let built = match self {
                Device::Cuda { .. } => candle_core::utils::cuda_is_available(),
                _ => candle_core::utils::metal_is_available(),
            };
            let fix = match built {
                true => "choose another device with --device, or --device cpu".to_owned(),
                false => format!("build with `--features {feature}`, or use --device cpu"),
            };
            Error::device(format!("{self} cannot be used; {fix}")).caused_by(error)
        })
    }
}

/// As in `--device`: `cpu`, `cuda:0`, `metal:0`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu { .. } => f.write_str("cpu"),
            Device::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
            Device::Metal { ordinal } => write!(f, "metal:{ordinal}"),
        }
    }
}

/// Reads `cpu`, `cpu:THREADS`, `cuda`, `cuda:ORDINAL`, `metal`, `metal:ORDINAL`.
impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            Error::caller(format!(
                "device {}: need cpu, cuda or metal, with `:NUMBER` for threads of the CPU or for \
                 one of several GPUs",
                crate::error::quote(text)
            ))
        };
        let (kind, number) = match text.split_once(':') {
            Some((kind, number)) => (kind, Some(number.parse().map_err(|_| refuse())?)),
            None => (text, None),
        };
        match (kind, number) {
            ("cpu", None) => Ok(Device::cpu()),
            ("cpu", Some(threads @ 1..=THREADS_MAX)) => Ok(Device::Cpu { threads }),
            ("cuda", number) => Ok(Device::Cuda {
                ordinal: number.unwrap_or(0),
            }),
            ("metal", number) => Ok(Device::Metal {
                ordinal: number.unwrap_or(0),
            }),
            _ => Err(refuse()),
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda_available_bytes(ordinal: usize) -> Option<u64> {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    let context = CudaContext::new(ordinal).ok()?;
    context.bind_to_thread().ok()?;
    let (free, _total) = candle_core::cuda_backend::cudarc::driver::result::mem_get_info().ok()?;
    Some(free as u64)
}

#[cfg(not(feature = "cuda"))]
fn cuda_available_bytes(_ordinal: usize) -> Option<u64> {
    None
}

/// Cores of the machine, as the system counts them.
mod cores {
    /// Cores with multipliers of their own; `None` where the system does not tell.
    #[cfg(target_os = "linux")]
    pub fn physical() -> Option<usize> {
        count(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn physical() -> Option<usize> {
        None
    }

    /// Different pairs of package and core in `/proc/cpuinfo`.
    #[cfg(any(target_os = "linux", test))]
    pub fn count(cpuinfo: &str) -> Option<usize> {
        let value = |cpu: &str, key: &str| {
            let line = cpu.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let core = |cpu| Some((value(cpu, "physical id")?, value(cpu, "core id")?));
        let cores: std::collections::HashSet<_> = cpuinfo.split("\n\n").filter_map(core).collect();
        (!cores.is_empty()).then_some(cores.len())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn two_threads_of_a_core_are_one() {
            let cpu = |package, core| {
                format!("processor\t: 0\nphysical id\t: {package}\ncore id\t\t: {core}\n\n")
            };
            let cpuinfo = [cpu(0, 0), cpu(0, 1), cpu(0, 0), cpu(0, 1), cpu(1, 0)].concat();
            assert_eq!(count(&cpuinfo), Some(3));
            assert_eq!(count("processor: 0\n\nprocessor: 1\n"), None);
            assert_eq!(count(""), None);
        }
    }
}

/// Free memory of the machine, as the system counts it.
mod memory {
    /// What may still be used without swapping, within the control group's limit.
    #[cfg(target_os = "linux")]
    pub fn available_bytes() -> Option<u64> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let machine = available_of_meminfo(&read("/proc/meminfo")?)?;
        let group = read("/proc/self/cgroup").and_then(|list| {
            let path = list
                .lines()
                .find_map(|line| line.strip_prefix("0::"))?
                .to_owned();
            let file = |name| read(&format!("/sys/fs/cgroup{path}/{name}"));
            left_in_group(
                &file("memory.max")?,
                &file("memory.current")?,
                &file("memory.stat")?,
            )
        });
        Some(group.map_or(machine, |group| machine.min(group)))
    }

    #[cfg(target_os = "macos")]
    pub fn available_bytes() -> Option<u64> {
        let output = std::process::Command::new("/usr/bin/vm_stat")
            .output()
            .ok()?;
        available_of_vm_stat(std::str::from_utf8(&output.stdout).ok()?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    pub fn available_bytes() -> Option<u64> {
        None
    }

    #[cfg(any(target_os = "linux", test))]
    fn available_of_meminfo(text: &str) -> Option<u64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Limit less use; file pages count as use although they are given back under pressure.
    #[cfg(any(target_os = "linux", test))]
    fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
        let max: u64 = max.trim().parse().ok()?;
        let current: u64 = current.trim().parse().ok()?;
        let file_pages = stat
            .lines()
            .find_map(|line| line.strip_prefix("inactive_file "));
        let file_pages: u64 = file_pages.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        Some(max.saturating_sub(current.saturating_sub(file_pages)))
    }

    #[cfg(any(target_os = "macos", test))]
    fn available_of_vm_stat(text: &str) -> Option<u64> {
        let page: u64 = text
            .split("page size of ")
            .nth(1)?
            .split(' ')
            .next()?
            .parse()
            .ok()?;
        let pages = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches('.').parse().ok()
        };
        let free = pages("Pages free:")? + pages("Pages inactive:")?;
        page.checked_mul(free + pages("Pages speculative:").unwrap_or(0))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_systems_own_words_are_read() {
            let meminfo = "MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:   42 kB\n";
            assert_eq!(available_of_meminfo(meminfo), Some(42 * 1024));
            assert_eq!(available_of_meminfo("MemTotal: 1 kB"), None);
            assert_eq!(left_in_group("max\n", "5\n", ""), None);
            let stat = "anon 3\ninactive_file 30\n";
            assert_eq!(left_in_group("100\n", "50\n", stat), Some(80));
            assert_eq!(left_in_group("100\n", "150\n", ""), Some(0));
            let vm_stat = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
                           Pages free:      10.\nPages active:   7.\nPages inactive:   20.\n\
                           Pages speculative:   2.\n";
            assert_eq!(available_of_vm_stat(vm_stat), Some(32 * 16384));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for (text, device) in [
            ("cpu:3", Device::Cpu { threads: 3 }),
            ("cuda", Device::Cuda { ordinal: 0 }),
            ("cuda:1", Device::Cuda { ordinal: 1 }),
            ("metal", Device::Metal { ordinal: 0 }),
        ] {
            assert_eq!(text.parse::<Device>().unwrap(), device);
        }
        for text in ["", "gpu", "cpu:0", "cpu:x", "cuda:-1", "cpu:100000"] {
            let error = text.parse::<Device>().unwrap_err();
            assert!(
                error.to_string().contains("need cpu, cuda or metal"),
                "{error}"
            );
        }
    }

    #[test]
    #[cfg(not(any(feature = "cuda", feature = "metal")))]
    fn a_device_this_build_lacks_says_how_to_get_it() {
        let error = Device::Cuda { ordinal: 0 }.candle().unwrap_err();
        assert!(error.to_string().contains("--features cuda"), "{error}");
        assert_eq!(error.blame(), crate::Blame::Device);
    }
}

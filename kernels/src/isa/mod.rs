//! Which instructions the kernels use, chosen once.

use std::sync::OnceLock;

/// A family of instructions. All paths give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelPath {
    Portable,
    Avx2,
    Avx512Vnni,
}

impl KernelPath {
    /// Short name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            KernelPath::Portable => "portable",
            KernelPath::Avx2 => "avx2",
            KernelPath::Avx512Vnni => "avx512-vnni",
        }
    }
}

/// The path of this process.
pub fn kernel_path() -> KernelPath {
    static PATH: OnceLock<KernelPath> = OnceLock::new();
    *PATH.get_or_init(|| KernelPath::Portable)
}

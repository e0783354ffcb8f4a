pub use kernels::Blame;

pub mod template;

pub use kernels::Blame;

#![forbid(unsafe_code)]
pub use models::Blame;

use crate::env::Env;
use crate::error::Result;
use std::ffi::OsString;
pub fn main(env: Result<Env>, _args: impl IntoIterator<Item = OsString>) -> u8 {
    env.map_or_else(|error| error.exit_code(), |_| 0)
}

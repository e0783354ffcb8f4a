//! The engine on a fake model whose answers depend on every bit of KV it reads.

mod cases;
mod disk;
mod drafts;
mod engine;
mod fake;
mod files;
mod pressure;
mod rig;
mod simulation;
mod windows;

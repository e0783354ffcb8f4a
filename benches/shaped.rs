//! Writes a model of random weights in the shapes of Llama 3.2 1B, to measure speed at a size that no
//! package brings: 16 layers, 2,048 wide, 32 heads over 8 of KV, 128,256 tokens. It speaks nonsense.
//!
//! ```text
//! cargo bench --bench shaped -- OUT.gguf [--as Q4_0] [--layers 16]
//! ```
//!
//! Takes half a minute and 6 GiB of memory.

mod options;

use kernels::WeightType;
use models::tiny::{TinySpec, tiny_model};
use options::{Options, refuse};

fn main() {
    let options = Options::read_or_exit("shaped", &["--as", "--layers"]);
    let name = options.text("--as").unwrap_or("Q4_0");
    let Some(weights) = WeightType::ALL.iter().find(|ty| ty.name() == name) else {
        let names: Vec<&str> = WeightType::ALL.iter().map(|ty| ty.name()).collect();
        refuse(&format!("--as {name}: need one of {}", names.join(", ")));
    };
    let spec = TinySpec {
        layers: options.number_or_exit("--layers", 16),
        d_model: 2048,
        q_heads: 32,
        kv_heads: 8,
        d_ff: 8192,
        vocab: 128_256,
        context: 131_072,
        rope_base: 500_000.0,
        weights: *weights,
        ..TinySpec::default()
    };
    if let Err(error) = tiny_model(&options.file, &spec) {
        refuse(&error.to_string());
    }
}

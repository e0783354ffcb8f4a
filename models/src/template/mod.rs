//! Chat templates: the Jinja2 program inside a model file that lays a conversation out as the model was trained
//! on it. Rendered with minijinja so that the bytes are those of transformers' `apply_chat_template`.
//!
//! Invariant: a render depends on its input only. No clock, no environment, no random order; and it ends, within
//! the bounds of `limits`, whatever the template says.
//!
//! Source: transformers `utils/chat_template_utils.py` (trim_blocks, lstrip_blocks, loop controls, `tojson`,
//! `raise_exception`, `strftime_now`, the `generation` tag; `tools` and `documents` are None when absent).

mod adapt;
mod clock;
mod error;
mod features;
pub mod limits;
mod methods;
mod python;
mod source;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as Jinja};
use minijinja::{AutoEscape, Environment, ErrorKind};
use serde_json::{Map, Value};

pub use clock::{Date, FrozenClock, Time};
pub use error::TemplateError;
pub use features::{ArgumentsForm, Features};

/// What is used when a model file carries no template: ChatML, the layout most open models were trained on.
const FALLBACK: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// What a template sees.
pub struct RenderInput<'a> {
    /// OpenAI-shaped messages. `ChatTemplate::adapt` makes them fit this template.
    pub messages: &'a [Value],
    /// OpenAI-shaped tool definitions; an empty list is the same as none.
    pub tools: Option<&'a [Value]>,
    pub add_generation_prompt: bool,
    pub now: &'a FrozenClock,
    /// Further names, such as `enable_thinking`; they win over ours.
    pub extra: &'a Map<String, Value>,
}

/// A compiled template and what trial renders found out about it.
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    features: Features,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the tokenizer's tokens, empty where it has none.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        if source.len() > limits::SOURCE_BYTES_MAX {
            return Err(TemplateError::TooLong {
                what: "is too long",
                need: source.len(),
                have: limits::SOURCE_BYTES_MAX,
            });
        }
        let mut env = environment();
        env.add_template_owned("chat", source::rewrite(source))?;
        let mut template = ChatTemplate {
            env,
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            features: Features::default(),
        };
        template.env.set_fuel(Some(limits::TRIAL_FUEL));
        template.features = Features::probe(&template);
        template.env.set_fuel(Some(limits::RENDER_FUEL));
        Ok(template)
    }

    /// The documented fallback for a model without a template.
    pub fn fallback(bos: &str, eos: &str) -> Result<Self, TemplateError> {
        ChatTemplate::new(FALLBACK, bos, eos)
    }

    /// The template as the model file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What trial renders found out.
    pub fn features(&self) -> &Features {
        &self.features
    }

    pub fn supports_system(&self) -> bool {
        self.features.system
    }

    pub fn supports_tools(&self) -> bool {
        self.features.tools
    }

    /// Renders, exactly as transformers would, what it is given.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TemplateError> {
        let clock = input.now.clone();
        let strftime = Jinja::from_function(move |format: &str| clock.format(format));
        let mut names = vec![
            ("messages".to_owned(), Jinja::from(Serde(input.messages))),
            ("tools".to_owned(), tools_value(input.tools)),
            ("documents".to_owned(), Jinja::from(())),
            (
                "add_generation_prompt".to_owned(),
                Jinja::from(input.add_generation_prompt),
            ),
            ("strftime_now".to_owned(), strftime),
            ("bos_token".to_owned(), Jinja::from(self.bos.as_str())),
            ("eos_token".to_owned(), Jinja::from(self.eos.as_str())),
        ];
        names.extend(
            input
                .extra
                .iter()
                .map(|(name, value)| (name.clone(), Jinja::from(Serde(value)))),
        );
        let template = self.env.get_template("chat")?;
        let mut out = BoundedOutput::default();
        let done = template.render_captured_to(Jinja::from_pairs(names), &mut out);
        if out.overflow {
            return Err(TemplateError::TooLong {
                what: "writes without end",
                need: out.bytes.len() + 1,
                have: limits::OUTPUT_BYTES_MAX,
            });
        }
        done?;
        String::from_utf8(out.bytes).map_err(|error| TemplateError::Render {
            line: 0,
            detail: format!("output is not UTF-8: {error}"),
        })
    }
}

fn tools_value(tools: Option<&[Value]>) -> Jinja {
    match tools {
        Some(tools) if !tools.is_empty() => Jinja::from(Serde(tools)),
        _ => Jinja::from(()),
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(trimmed_syntax());
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(limits::RENDER_FUEL));
    env.set_recursion_limit(limits::RECURSION_MAX);
    methods::install(&mut env);
    env.set_formatter(|out, _state, value| {
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&python::str_of(value)?),
        };
        written.map_err(|_| minijinja::Error::from(ErrorKind::WriteFailure))
    });
    env.add_function(
        "raise_exception",
        |message: &Jinja| -> Result<String, minijinja::Error> {
            let text = python::str_of(message)?;
            Err(
                minijinja::Error::new(ErrorKind::InvalidOperation, text.clone())
                    .with_source(error::Raised(text)),
            )
        },
    );
    // transformers runs templates in a sandbox that knows no `debug`; ours prints the whole context.
    env.remove_global("debug");
    env
}

fn trimmed_syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true);
    syntax.lstrip_blocks(true);
    syntax.build().unwrap_or_default()
}

/// Collects output up to the limit.
#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
    overflow: bool,
}

impl std::io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > limits::OUTPUT_BYTES_MAX {
            self.overflow = true;
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

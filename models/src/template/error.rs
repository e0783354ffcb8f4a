//! What can go wrong with a chat template, and who has to act.

use kernels::Blame;

/// A template that does not compile, does not render, or refuses the conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template's own `raise_exception`, word for word.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    #[error("the model's chat template does not compile (line {line}): {detail}")]
    Syntax { line: usize, detail: String },
    #[error("the model's chat template failed while rendering (line {line}): {detail}")]
    Render { line: usize, detail: String },
    #[error(
        "the model's chat template needs more than {steps_max} steps of work and was stopped; use another template or a shorter conversation"
    )]
    TooMuchWork { steps_max: u64 },
    #[error(
        "the model's chat template {what}: need {need} bytes, have at most {have}; use another template"
    )]
    TooLong {
        what: &'static str,
        need: usize,
        have: usize,
    },
}

impl TemplateError {
    /// The caller can mend a conversation that is refused; everything else is a fault of the model file.
    pub fn blame(&self) -> Blame {
        match self {
            TemplateError::Refused(_) => Blame::Caller,
            TemplateError::Syntax { .. }
            | TemplateError::Render { .. }
            | TemplateError::TooMuchWork { .. }
            | TemplateError::TooLong { .. } => Blame::Input,
        }
    }
}

/// Marks the error that `raise_exception` makes, so that its text can be told from the engine's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            if let Some(raised) = inner.downcast_ref::<Raised>() {
                return TemplateError::Refused(raised.0.clone());
            }
            if let Some(engine) = inner.downcast_ref::<minijinja::Error>()
                && engine.kind() == minijinja::ErrorKind::OutOfFuel
            {
                return TemplateError::TooMuchWork {
                    steps_max: super::limits::RENDER_FUEL,
                };
            }
            cause = inner.source();
        }
        let line = error.line().unwrap_or(0);
        let detail = error
            .detail()
            .map_or_else(|| error.kind().to_string(), str::to_owned);
        match error.kind() {
            minijinja::ErrorKind::SyntaxError => TemplateError::Syntax { line, detail },
            _ => TemplateError::Render { line, detail },
        }
    }
}

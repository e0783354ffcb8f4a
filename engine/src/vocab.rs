//! The byte vocabulary: all the engine knows of text.
//!
//! Invariant: the bytes of a token never depend on the tokens around it.

/// What the bytes of each token are, and which tokens end a reply.
pub trait TokenBytes: Send + Sync {
    fn vocab_size(&self) -> usize;
    /// The exact bytes that `id` adds to the text; for a control token its literal text.
    fn bytes(&self, id: u32) -> &[u8];
    fn is_control(&self, id: u32) -> bool;
    /// Any end-of-generation token: `eos`, `<|im_end|>`, `<|eot_id|>`, ...
    fn is_end(&self, id: u32) -> bool;
    /// The tokenizer's own end-of-text token, for the grammar's vocabulary.
    fn eos(&self) -> Option<u32>;
}

/// Tokens that are no text (unknown, unused) count as control tokens: nothing may write them.
impl TokenBytes for models::tokenizer::Tokenizer {
    fn vocab_size(&self) -> usize {
        self.vocab_size()
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.token_bytes(id)
    }

    fn is_control(&self, id: u32) -> bool {
        use models::tokenizer::Kind;
        match self.kind(id) {
            Kind::Control | Kind::Unknown | Kind::Unused => true,
            Kind::Normal | Kind::UserDefined | Kind::Byte => false,
        }
    }

    fn is_end(&self, id: u32) -> bool {
        self.is_end(id)
    }

    fn eos(&self) -> Option<u32> {
        self.eos()
    }
}

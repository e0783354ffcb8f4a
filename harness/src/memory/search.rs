//! Which memories fit a question, by their words.

use bm25::{Document, Language, SearchEngineBuilder};

use super::Memory;
use crate::limits;

/// The best first; those that were replaced come too, and say so.
pub fn best(memories: &[Memory], query: &str) -> Vec<Memory> {
    let document = |(id, memory): (usize, &Memory)| Document {
        id: id as u32,
        contents: memory.line(),
    };
    let documents: Vec<_> = memories.iter().enumerate().map(document).collect();
    let engine = SearchEngineBuilder::<u32>::with_documents(Language::English, documents).build();
    let found = engine.search(query, limits::MEMORIES_FOUND_MAX);
    found
        .into_iter()
        .filter_map(|result| memories.get(result.document.id as usize).cloned())
        .collect()
}

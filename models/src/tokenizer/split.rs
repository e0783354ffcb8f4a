//! Pre-tokenisers: text cut into words before BPE merges inside each word.
//!
//! A pre-tokeniser is a row of stages; each cuts every piece that the stage before left, and what a
//! stage does not match stays a piece of its own. Invariant: the pieces joined are the text.
//!
//! The patterns are the models' own (`tokenizer.json`), matched by automata in linear time. All of
//! them end in `\s+(?!\S)|\s+`, "white space, but leave the last one to the word that follows",
//! which needs a look-ahead that automata lack: it is written `\s+` here and the step back is taken
//! by [`Stage::cut`]. After GPT-2's `encoder.py`; names as in llama.cpp's `llama-vocab.cpp`.

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input, PatternID};

/// Cuts text into words.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Stage>,
}

#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// The pattern that leaves its last white space to the next word.
    retreats: Option<PatternID>,
}

/// What a pre-tokeniser name stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreTokenizer {
    stages: &'static [&'static [&'static str]],
    /// A word that is a token is taken whole, without looking at merges.
    pub whole_words: bool,
    /// Text starts with BOS unless the file says otherwise.
    pub adds_bos: bool,
}

const SPACE: &str = r"\s+";

const GPT2: &[&str] = &[
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+",
    SPACE,
];
const LLAMA3: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    SPACE,
];
const QWEN2: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    SPACE,
];
const QWEN35: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
    SPACE,
];
const GPT4O: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
    SPACE,
];
const TEKKEN: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
    SPACE,
];
const DIGIT: &[&str] = &[r"\p{N}"];
const FALCON_PUNCTUATION: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+"];
const THREE_DIGITS: &[&str] = &[r"[0-9][0-9][0-9]"];

const fn plain(stages: &'static [&'static [&'static str]]) -> PreTokenizer {
    PreTokenizer {
        stages,
        whole_words: false,
        adds_bos: false,
    }
}

/// Used where a file names no pre-tokeniser, or one we do not know.
pub(super) const FALLBACK: PreTokenizer = plain(&[GPT2]);

/// The pre-tokeniser that `tokenizer.ggml.pre` names, or `None` for an unknown name.
pub(super) fn by_name(name: &str) -> Option<PreTokenizer> {
    Some(match name {
        "default" => FALLBACK,
        "gpt-2" | "phi-2" | "olmo" | "mpt" | "jais" | "trillion" | "gigachat" | "a.x-4.0"
        | "mellum" | "exaone4" | "granite-docling" => plain(&[GPT2]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => plain(&[DIGIT, GPT2]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" => PreTokenizer {
            stages: &[LLAMA3],
            whole_words: true,
            adds_bos: true,
        },
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => plain(&[LLAMA3]),
        "glm4" => PreTokenizer {
            whole_words: true,
            ..plain(&[LLAMA3])
        },
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => plain(&[QWEN2]),
        "qwen35" => plain(&[QWEN35]),
        "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => plain(&[GPT4O]),
        "tekken" => PreTokenizer {
            stages: &[TEKKEN],
            whole_words: true,
            adds_bos: true,
        },
        "falcon" => plain(&[FALCON_PUNCTUATION, GPT2, THREE_DIGITS]),
        _ => return None,
    })
}

impl Splitter {
    pub fn new(pre: &PreTokenizer) -> Self {
        let stages = pre
            .stages
            .iter()
            .map(|patterns| Stage::new(patterns))
            .collect();
        Self { stages }
    }

    /// Calls `word` with the words of `text`, in order.
    pub fn split<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        cut_all(&self.stages, text, word);
    }
}

fn cut_all<'t>(stages: &[Stage], text: &'t str, word: &mut impl FnMut(&'t str)) {
    match stages {
        [] => word(text),
        [last] => last.cut(text, word),
        [first, rest @ ..] => first.cut(text, &mut |piece| cut_rest(rest, piece, word)),
    }
}

/// A named function, so that the closures of [`cut_all`] do not nest in their types.
fn cut_rest<'t>(stages: &[Stage], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match stages {
        [] => word(text),
        [first, rest @ ..] => first.cut(text, &mut |piece| cut_rest(rest, piece, word)),
    }
}

impl Stage {
    fn new(patterns: &[&str]) -> Self {
        let regex = Regex::new_many(patterns).expect("the patterns above are valid");
        let retreats = patterns
            .iter()
            .position(|p| *p == SPACE)
            .map(PatternID::must);
        Self { regex, retreats }
    }

    fn cut<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        let mut at = 0;
        while at < text.len() {
            let input = Input::new(text).span(at..text.len());
            // Nearly every match starts where the last ended, and an anchored search is twice as fast.
            let found = self.regex.search(&input.clone().anchored(Anchored::Yes));
            let Some(found) = found.or_else(|| self.regex.search(&input)) else {
                break;
            };
            let mut end = found.end();
            if self.retreats == Some(found.pattern()) && end < text.len() {
                end = step_back(&text[..end], found.start());
            }
            if at < found.start() {
                word(&text[at..found.start()]);
            }
            word(&text[found.start()..end]);
            at = end;
        }
        if at < text.len() {
            word(&text[at..]);
        }
    }
}

/// The end of `text` without its last character, unless that would leave nothing after `start`.
fn step_back(text: &str, start: usize) -> usize {
    let last = text.chars().next_back().map_or(0, char::len_utf8);
    let end = text.len() - last;
    if end > start { end } else { text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        Splitter::new(&by_name(name).unwrap()).split(text, &mut |w| words.push(w));
        words
    }

    /// Digits grouped, white space before a word, CRLF, apostrophes and Unicode spaces are where
    /// implementations differ; the loss of quality is silent.
    #[test]
    fn words_of_each_pre_tokenizer() {
        let rows: &[(&str, &str, &[&str])] = &[
            ("gpt-2", "(x):\n", &["(", "x", "):", "\n"]),
            ("smollm", "(x):\n", &["(", "x", "):", "\n"]),
            ("llama-bpe", "(x):\n", &["(x", "):\n"]),
            ("qwen2", "(x):\n", &["(x", "):\n"]),
            ("gpt-2", "12345 6", &["12345", " 6"]),
            ("smollm", "12345 6", &["1", "2", "3", "4", "5", " ", "6"]),
            ("llama-bpe", "12345 6", &["123", "45", " ", "6"]),
            ("qwen2", "12345 6", &["1", "2", "3", "4", "5", " ", "6"]),
            ("gpt-2", "I'm WE'RE", &["I", "'m", " WE", "'", "RE"]),
            ("llama-bpe", "I'm WE'RE", &["I", "'m", " WE", "'RE"]),
            ("gpt-2", "a  b", &["a", " ", " b"]),
            ("gpt-2", "a\t\tb ", &["a", "\t", "\t", "b", " "]),
            ("qwen2", "a\t\tb ", &["a", "\t", "\tb", " "]),
            ("gpt-2", "a\r\n\r\nb", &["a", "\r\n\r", "\n", "b"]),
            ("llama-bpe", "a\r\n\r\nb", &["a", "\r\n\r\n", "b"]),
            ("gpt-2", "\u{a0}x\u{2003}", &["\u{a0}", "x", "\u{2003}"]),
            ("llama-bpe", "\u{a0}x\u{2003}", &["\u{a0}x", "\u{2003}"]),
            ("gpt-2", "٣٤x", &["٣٤", "x"]),
            ("qwen2", "٣٤x", &["٣", "٤", "x"]),
            ("gpt-2", " ½ǅ", &[" ½", "ǅ"]),
            ("gpt-2", "日本。\n次", &["日本", "。", "\n", "次"]),
            ("qwen2", "日本。\n次", &["日本", "。\n", "次"]),
            ("gpt-2", "👩\u{200d}👧 ok", &["👩\u{200d}👧", " ok"]),
            ("gpt-2", "e\u{301}", &["e", "\u{301}"]),
            ("qwen35", "e\u{301}x", &["e\u{301}x"]),
            ("gpt-4o", "HelloWorld's", &["Hello", "World's"]),
            ("falcon", "a+12345", &["a", "+", "123", "45"]),
            ("gpt-2", "", &[]),
            ("smollm", "  1", &["  ", "1"]),
        ];
        for (name, text, want) in rows {
            assert_eq!(words(name, text), *want, "{name} on {text:?}");
        }
    }

    #[test]
    fn a_million_characters_of_one_kind_take_linear_time() {
        for unit in [" ", "\n", "a", "1", "'", " \n", "\u{3000}", "a "] {
            let text = unit.repeat(1_000_000 / unit.len());
            for name in ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "falcon"] {
                let started = std::time::Instant::now();
                let length: usize = words(name, &text).iter().map(|w| w.len()).sum();
                assert_eq!(length, text.len());
                assert!(started.elapsed().as_secs() < 5, "{name} on {unit:?}");
            }
        }
    }
}

//! The vocabularies of tiny models: small, and complete, so that any text can be tokenised.

use super::TinyTokenizer;
use crate::gguf::write::{Meta, Writer};

/// Token types as GGUF numbers them.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

struct Token {
    text: String,
    ty: i32,
    score: f32,
}

fn token(text: impl Into<String>, ty: i32) -> Token {
    Token {
        text: text.into(),
        ty,
        score: 0.0,
    }
}

pub(super) fn write(writer: &mut Writer, kind: TinyTokenizer, vocab: usize) {
    match kind {
        TinyTokenizer::Bpe => write_bpe(writer, vocab),
        TinyTokenizer::Spm => write_spm(writer, vocab),
    }
}

/// Merges in the order of their rank, space written as in the file. Words of several tokens, words
/// of one, runs of space and of line ends.
const MERGES: [&str; 24] = [
    "Ġ Ġ", "Ċ Ċ", "t h", "th e", "Ġ the", "i n", "e r", "a n", "o n", "r e", "l l", "h e", "he ll",
    "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "an d", "Ġ and", "Ġ a", "1 2", "12 3",
];

fn write_bpe(writer: &mut Writer, vocab: usize) {
    let mut tokens: Vec<Token> = (0..=u8::MAX)
        .map(|byte| token(byte_to_char(byte), NORMAL))
        .collect();
    tokens.extend(
        MERGES
            .iter()
            .map(|merge| token(merge.replace(' ', ""), NORMAL)),
    );
    let end_of_text = tokens.len() as u32;
    tokens.push(token("<|endoftext|>", CONTROL));
    tokens.push(token("<|im_start|>", CONTROL));
    let end_of_turn = tokens.len() as u32;
    tokens.push(token("<|im_end|>", CONTROL));
    tokens.push(token("<tool_call>", USER_DEFINED));
    tokens.push(token("</tool_call>", USER_DEFINED));
    writer
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2");
    write_tokens(writer, tokens, vocab);
    writer
        .set("tokenizer.ggml.merges", Meta::strings(MERGES))
        .set("tokenizer.ggml.bos_token_id", end_of_text)
        .set("tokenizer.ggml.eos_token_id", end_of_turn)
        .set("tokenizer.ggml.padding_token_id", end_of_text)
        .set("tokenizer.ggml.add_bos_token", false);
}

/// Pieces of more than one character, the best first. SentencePiece joins the neighbours whose piece
/// has the highest score, so each long one is reachable over shorter ones.
const PIECES: [&str; 18] = [
    "▁▁", "th", "the", "▁the", "in", "er", "an", "on", "re", "ll", "he", "hell", "hello", "▁hello",
    "▁a", "nd", "▁and", "12",
];

fn write_spm(writer: &mut Writer, vocab: usize) {
    let mut tokens = vec![
        token("<unk>", UNKNOWN),
        token("<s>", CONTROL),
        token("</s>", CONTROL),
    ];
    tokens.extend((0..=u8::MAX).map(|byte| token(format!("<0x{byte:02X}>"), BYTE)));
    tokens.push(token("<|im_start|>", CONTROL));
    tokens.push(token("<|im_end|>", CONTROL));
    let singles = std::iter::once('▁').chain('!'..='~').map(String::from);
    for (rank, text) in PIECES
        .into_iter()
        .map(String::from)
        .chain(singles)
        .enumerate()
    {
        tokens.push(Token {
            text,
            ty: NORMAL,
            score: -(rank as f32),
        });
    }
    let scores: Vec<f32> = tokens.iter().map(|token| token.score).collect();
    writer.set("tokenizer.ggml.model", "llama");
    let count = write_tokens(writer, tokens, vocab);
    let padded = scores.into_iter().chain(std::iter::repeat(0.0)).take(count);
    writer
        .set("tokenizer.ggml.scores", Meta::f32s(padded))
        .set("tokenizer.ggml.bos_token_id", 1)
        .set("tokenizer.ggml.eos_token_id", 2)
        .set("tokenizer.ggml.unknown_token_id", 0)
        .set("tokenizer.ggml.add_bos_token", true)
        .set("tokenizer.ggml.add_eos_token", false);
}

/// Writes tokens and types, filled up to `vocab`; returns how many.
fn write_tokens(writer: &mut Writer, mut tokens: Vec<Token>, vocab: usize) -> usize {
    for index in tokens.len()..vocab {
        tokens.push(token(format!("<|unused_{index}|>"), UNUSED));
    }
    let types = tokens.iter().map(|token| token.ty);
    writer.set("tokenizer.ggml.token_type", Meta::i32s(types));
    let count = tokens.len();
    writer.set(
        "tokenizer.ggml.tokens",
        Meta::strings(tokens.into_iter().map(|t| t.text)),
    );
    count
}

/// How GPT-2 writes bytes as characters: printable ones as they are, the others from U+0100 on.
fn byte_to_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bytes_are_written_as_gpt_2_writes_them() {
        let chars: HashSet<char> = (0..=u8::MAX).map(byte_to_char).collect();
        assert_eq!(chars.len(), 256);
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(b'a'), 'a');
        assert_eq!(byte_to_char(0xAD), 'Ń');
    }

    #[test]
    fn each_merge_joins_two_tokens_that_are_there() {
        let mut known: HashSet<String> = (0..=u8::MAX).map(|b| byte_to_char(b).into()).collect();
        for merge in MERGES {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(known.contains(left) && known.contains(right), "{merge}");
            assert!(
                known.insert(merge.replace(' ', "")),
                "{merge} makes a token twice"
            );
        }
    }
}

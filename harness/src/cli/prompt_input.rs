//! Where a prompt comes from: the arguments, standard input, or both.

use std::io::Read;

use crate::env::Env;
use crate::error::{Error, Result};
use crate::limits::STDIN_BYTES_MAX;

/// The words of the command line, with `-` standing for standard input. Without words standard input is the
/// prompt, unless it is a terminal. It is never read when a prompt was given without `-`: under a job
/// runner it may be open and silent for ever.
pub fn prompt_text(env: &Env, words: &[String], stdin: &mut dyn Read) -> Result<String> {
    let wants_stdin = words.iter().any(|word| word == "-");
    if words.is_empty() && env.terminals.stdin {
        return Err(Error::caller(
            "there is no prompt; write it behind the command, in quotes (`ostler` alone is a chat)",
        ));
    }
    let piped = if wants_stdin || words.is_empty() {
        read_all(stdin)?
    } else {
        String::new()
    };
    if words.is_empty() {
        return not_empty(piped);
    }
    let mut text = String::new();
    let mut after_stdin = false;
    for word in words {
        let is_stdin = word == "-";
        if !text.is_empty() {
            text.push_str(if is_stdin || after_stdin { "\n\n" } else { " " });
        }
        text.push_str(if is_stdin {
            piped.trim_end_matches('\n')
        } else {
            word
        });
        after_stdin = is_stdin;
    }
    not_empty(text)
}

fn not_empty(text: String) -> Result<String> {
    match text.trim().is_empty() {
        true => Err(Error::caller("the prompt is empty")),
        false => Ok(text),
    }
}

fn read_all(stdin: &mut dyn Read) -> Result<String> {
    let mut bytes = Vec::new();
    stdin
        .take(STDIN_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::device(format!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(Error::caller(format!(
            "standard input is longer than {} MiB, more than any context window holds; send less",
            STDIN_BYTES_MAX >> 20
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::caller(format!(
            "standard input is not UTF-8 text (byte {at}); convert it first"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts() {
        let cases: &[(&[&str], &str, Option<&str>)] = &[
            (&["one"], "never read", Some("one")),
            (&["two", "words"], "never read", Some("two words")),
            (&[], "piped\n", Some("piped\n")),
            (&["-"], "piped\n", Some("piped")),
            (
                &["Sum this up:", "-"],
                "text\n",
                Some("Sum this up:\n\ntext"),
            ),
            (&["-", "Sum", "it", "up"], "text", Some("text\n\nSum it up")),
            (&[], " \n", None),
            (&["-"], "", None),
            (&[""], "", None),
        ];
        for (words, stdin, expect) in cases {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let got = prompt_text(&Env::default(), &words, &mut stdin.as_bytes()).ok();
            assert_eq!(got.as_deref(), *expect, "{words:?}");
        }
    }

    #[test]
    fn a_terminal_is_not_waited_for_and_bytes_are_not_text() {
        let mut env = Env::default();
        env.terminals.stdin = true;
        let error = prompt_text(&env, &[], &mut "x".as_bytes()).unwrap_err();
        assert!(error.to_string().contains("no prompt"), "{error}");
        let error = prompt_text(&Env::default(), &[], &mut &b"abc\xff"[..]).unwrap_err();
        assert!(error.to_string().contains("byte 3"), "{error}");
    }
}

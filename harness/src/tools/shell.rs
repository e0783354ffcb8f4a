//! Reads a command line as the shell would, as far as it is plain, and refuses the rest.
//!
//! Plain: simple commands joined by newlines, `;`, `&&`, `||` and `|`, made of literal words and
//! file-name patterns. Whatever is not surely plain (substitutions, variables, redirections to
//! files, background jobs, keywords, groups, assignments, here-documents, unfinished quotes) is an
//! error that names it. So an answer "plain" can be trusted; anything new fails closed.
//! After the shell grammar of POSIX.1-2024, chapter 2, with what bash adds.

/// One command with its words, quotes removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simple {
    pub words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub text: String,
    /// Holds an unquoted `*`, `?` or `[`: the shell puts file names here.
    pub pattern: bool,
    /// Any part of it was quoted.
    pub quoted: bool,
}

/// Why a line is not plain; fits after "because it".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotPlain(pub String);

/// The simple commands of `line`, in order.
pub fn parse(line: &str) -> Result<Vec<Simple>, NotPlain> {
    if let Some(c) = line.chars().find(|c| is_odd(*c)) {
        return Err(NotPlain(format!("holds the character U+{:04X}", c as u32)));
    }
    let mut parser = Parser {
        chars: line.chars().collect(),
        at: 0,
        commands: Vec::new(),
        words: Vec::new(),
    };
    parser.run()?;
    parser.commands.iter().try_for_each(check_words)?;
    Ok(parser.commands)
}

/// Controls and what hides or reorders text: the person would not see what runs.
fn is_odd(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || super::clean::for_terminal(c.encode_utf8(&mut [0; 4])) != c.to_string()
}

/// Words that are no command names where a command begins.
const KEYWORDS: &[&str] = &[
    "!", "{", "}", "[[", "]]", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for",
    "function", "if", "in", "select", "then", "time", "until", "while",
];

fn check_words(command: &Simple) -> Result<(), NotPlain> {
    let Some(first) = command.words.first() else {
        return Err(NotPlain("has an empty command".into()));
    };
    if !first.quoted && KEYWORDS.contains(&first.text.as_str()) {
        return Err(NotPlain(format!("uses the keyword `{}`", first.text)));
    }
    if let Some((name, _)) = first.text.split_once('=')
        && name
            .trim_end_matches('+')
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_[]".contains(c))
    {
        return Err(NotPlain(format!("sets `{name}`")));
    }
    if first.pattern {
        return Err(NotPlain(
            "takes the command's name from a file-name pattern".into(),
        ));
    }
    Ok(())
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    commands: Vec<Simple>,
    words: Vec<Word>,
}

impl Parser {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let matches = text
            .chars()
            .enumerate()
            .all(|(i, c)| self.peek(i) == Some(c));
        if matches {
            self.at += text.chars().count();
        }
        matches
    }

    fn run(&mut self) -> Result<(), NotPlain> {
        // What stood before: a line may not begin with an operator, nor end with one that needs more.
        let mut needs_command = false;
        while let Some(c) = self.peek(0) {
            match c {
                ' ' | '\t' => self.at += 1,
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\n' => {
                    self.at += 1;
                    if !self.words.is_empty() {
                        self.end_command()?;
                        needs_command = false;
                    }
                }
                ';' | '|' | '&' => needs_command = self.operator()?,
                '<' | '>' => self.redirection()?,
                '(' | ')' => return Err(NotPlain("uses a subshell or a function".into())),
                _ => {
                    let word = self.word()?;
                    let number = !word.quoted && word.text.chars().all(|c| c.is_ascii_digit());
                    if number && matches!(self.peek(0), Some('<' | '>')) {
                        self.redirection()?;
                    } else {
                        self.words.push(word);
                    }
                }
            }
        }
        if !self.words.is_empty() {
            self.end_command()?;
        } else if needs_command {
            return Err(NotPlain("ends in the middle of a command".into()));
        }
        if self.commands.is_empty() {
            return Err(NotPlain("holds no command".into()));
        }
        Ok(())
    }

    /// Ends the command before an operator. True where another command must follow.
    fn operator(&mut self) -> Result<bool, NotPlain> {
        if self.eat("&>") {
            self.at -= 2;
            self.redirection()?;
            return Ok(false);
        }
        let joins = self.eat("&&") || self.eat("||");
        if !joins && self.eat("|&") {
            return Err(NotPlain("uses the operator `|&`".into()));
        }
        if !joins && (self.peek(0) == Some('&') || self.peek(1) == Some(';')) {
            let what = if self.peek(0) == Some('&') {
                "starts a background job"
            } else {
                "uses `;;`"
            };
            return Err(NotPlain(what.into()));
        }
        let pipe = !joins && self.eat("|");
        if !joins && !pipe {
            self.at += 1;
        }
        self.end_command()?;
        Ok(joins || pipe)
    }

    fn end_command(&mut self) -> Result<(), NotPlain> {
        if self.words.is_empty() {
            return Err(NotPlain(
                "has an operator without a command before it".into(),
            ));
        }
        self.commands.push(Simple {
            words: std::mem::take(&mut self.words),
        });
        Ok(())
    }

    /// Only what writes to no file: `2>&1`, `>/dev/null`, `</dev/null`.
    fn redirection(&mut self) -> Result<(), NotPlain> {
        let duplicates = self.eat(">&1") || self.eat(">&2");
        if duplicates {
            return match self.peek(0) {
                None | Some(' ' | '\t' | '\n' | ';' | '|' | '&') => Ok(()),
                _ => Err(NotPlain("redirects to a file".into())),
            };
        }
        let operator = [
            "&>>", "&>", "<<<", "<<", "<>", "<&", "<(", ">(", ">>", ">|", ">&", "<", ">",
        ]
        .into_iter()
        .find(|operator| self.eat(operator))
        .unwrap_or(">");
        if !matches!(operator, ">" | ">>" | "&>" | "&>>" | "<") {
            return Err(NotPlain(format!("uses `{operator}`")));
        }
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.at += 1;
        }
        let target = match self.peek(0) {
            None | Some('\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')') => {
                return Err(NotPlain("has a redirection without a file".into()));
            }
            Some(_) => self.word()?,
        };
        if target.text == "/dev/null" && !target.pattern {
            return Ok(());
        }
        let what = if operator == "<" {
            "reads from a file"
        } else {
            "redirects to a file"
        };
        Err(NotPlain(what.into()))
    }

    fn word(&mut self) -> Result<Word, NotPlain> {
        let mut word = Word {
            text: String::new(),
            pattern: false,
            quoted: false,
        };
        let start = self.at;
        while let Some(c) = self.peek(0) {
            match c {
                ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')' => break,
                '\'' => self.single_quoted(&mut word)?,
                '"' => self.double_quoted(&mut word)?,
                '\\' => {
                    self.at += 1;
                    match self.peek(0) {
                        None => return Err(NotPlain("ends in a backslash".into())),
                        Some('\n') => {}
                        Some(c) => {
                            word.text.push(c);
                            word.quoted = true;
                        }
                    }
                    self.at += 1;
                }
                '$' | '`' => return Err(NotPlain("uses a variable or a substitution".into())),
                '{' | '}' => return Err(NotPlain("uses braces".into())),
                '~' if self.at == start => {
                    return Err(NotPlain("uses `~`, a path outside the workspace".into()));
                }
                '!' if self.at > start => return Err(NotPlain("uses `!` inside a word".into())),
                c => {
                    word.pattern |= matches!(c, '*' | '?' | '[');
                    word.text.push(c);
                    self.at += 1;
                }
            }
        }
        Ok(word)
    }

    fn single_quoted(&mut self, word: &mut Word) -> Result<(), NotPlain> {
        word.quoted = true;
        self.at += 1;
        loop {
            match self.peek(0) {
                None => return Err(NotPlain("has an unfinished quote".into())),
                Some('\'') => break,
                Some(c) => word.text.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(())
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), NotPlain> {
        word.quoted = true;
        self.at += 1;
        loop {
            match self.peek(0) {
                None => return Err(NotPlain("has an unfinished quote".into())),
                Some('"') => break,
                Some('$' | '`') => {
                    return Err(NotPlain("uses a variable or a substitution".into()));
                }
                Some('\\') => {
                    self.at += 1;
                    match self.peek(0) {
                        None => return Err(NotPlain("has an unfinished quote".into())),
                        Some('\n') => {}
                        Some(c @ ('$' | '`' | '"' | '\\')) => word.text.push(c),
                        Some(c) => {
                            word.text.push('\\');
                            word.text.push(c);
                        }
                    }
                }
                Some(c) => word.text.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<Vec<String>>, String> {
        let commands = parse(line).map_err(|e| e.0)?;
        Ok(commands
            .into_iter()
            .map(|c| c.words.into_iter().map(|w| w.text).collect())
            .collect())
    }

    #[test]
    fn plain_lines() {
        let cases: &[(&str, &[&[&str]])] = &[
            ("ls", &[&["ls"]]),
            ("  ls   -la\t. ", &[&["ls", "-la", "."]]),
            ("ls; pwd", &[&["ls"], &["pwd"]]),
            ("ls;", &[&["ls"]]),
            ("ls\n\npwd\n", &[&["ls"], &["pwd"]]),
            ("ls | wc -l", &[&["ls"], &["wc", "-l"]]),
            ("ls |\n\n wc", &[&["ls"], &["wc"]]),
            ("a && b || c", &[&["a"], &["b"], &["c"]]),
            ("ls # && rm x", &[&["ls"]]),
            ("ls a#b", &[&["ls", "a#b"]]),
            ("echo 'x; y' \"a && b\"", &[&["echo", "x; y", "a && b"]]),
            ("echo a\\ b 'it'\\''s'", &[&["echo", "a b", "it's"]]),
            ("echo \"a\\\"b\\n\"", &[&["echo", "a\"b\\n"]]),
            ("r''m d", &[&["rm", "d"]]),
            ("l\\\ns -l", &[&["ls", "-l"]]),
            ("ls 2>&1 >/dev/null", &[&["ls"]]),
            ("ls 2> /dev/null &>/dev/null", &[&["ls"]]),
            ("cat </dev/null", &[&["cat"]]),
            ("echo 2 3", &[&["echo", "2", "3"]]),
            ("echo ''", &[&["echo", ""]]),
        ];
        for (line, right) in cases {
            let got = words(line);
            let got: Vec<Vec<&str>> = match &got {
                Ok(commands) => commands
                    .iter()
                    .map(|c| c.iter().map(String::as_str).collect())
                    .collect(),
                Err(why) => panic!("{line:?}: {why}"),
            };
            assert_eq!(got, *right, "{line:?}");
        }
    }

    #[test]
    fn all_else_is_refused_by_name() {
        for line in [
            "",
            "#",
            "ls &",
            "ls & rm d",
            "ls $(rm d)",
            "ls `rm d`",
            "ls $HOME",
            "echo \"$(rm)\"",
            "ls > f",
            "ls >> f",
            "ls >f",
            "ls 2>f",
            "ls >&f",
            "ls >&1x",
            "ls &>f",
            "ls < f",
            "ls <<E\nE",
            "ls <<< x",
            "cat <(rm d)",
            "ls >| f",
            "ls <> f",
            "(ls)",
            "{ ls; }",
            "if true; then ls; fi",
            "! ls",
            "f() { ls; }",
            "FOO=1 ls",
            "FOO+=1 ls",
            "a[1]=2 ls",
            "ls 'x",
            "ls \"x",
            "ls \\",
            "&& ls",
            "ls &&",
            "ls ||",
            "ls |",
            "ls |& wc",
            "ls ;; pwd",
            "; ls",
            "ls | | wc",
            "~/x",
            "ls ~",
            "ls {a,b}",
            "l{s,x}",
            "r*m d",
            "ls\rrm d",
            "ls \u{202e}x",
            "ls \0",
            "echo \"a\\`b`\"",
            "for i in 1; do ls; done",
            "case x in x) ls;; esac",
            "[[ a ]]",
            "echo $'a'",
            "time ls",
            "coproc ls",
            "ls >",
            "ls > \n f",
            "echo a!b",
            "ls \u{1b}[2J",
            "ls\u{b}rm",
        ] {
            assert!(
                words(line).is_err(),
                "{line:?} was taken as {:?}",
                words(line)
            );
        }
        assert_eq!(words("ls > f").unwrap_err(), "redirects to a file");
        assert_eq!(words("ls & rm d").unwrap_err(), "starts a background job");
    }
}

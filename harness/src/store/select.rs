//! Which file of a hub repository a person means.

use std::sync::OnceLock;

use regex::Regex;

use super::error::{StoreError, nearest};
use super::model_ref::Pick;

/// What most people want first: small enough, and little is lost.
const PREFERENCE: [&str; 14] = [
    "Q4_K_M", "Q4_K_S", "Q4_K", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q8_0", "Q6_K",
    "BF16", "F16", "F32",
];

/// The quantisation a file's name tells, in upper case: `Q4_K_M` of `m-q4_k_m-00001-of-00002.gguf`.
pub fn quantisation_of(file: &str) -> Option<String> {
    static PATTERN: OnceLock<Regex> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        Regex::new(r"(?i)(?:^|[-._/])((?:IQ|TQ|Q)\d(?:_[0-9A-Z]+)*|BF16|F16|FP16|F32|FP32|MXFP4)$")
            .expect("a constant pattern, exercised by a test")
    });
    let (stem, _) = split_part(file);
    let found = pattern
        .captures(stem)?
        .get(1)?
        .as_str()
        .to_ascii_uppercase();
    Some(match found.as_str() {
        "FP16" => "F16".to_owned(),
        "FP32" => "F32".to_owned(),
        _ => found,
    })
}

/// The file or, for a split model, its parts in order.
pub fn select(repo: &str, pick: &Pick, files: &[String]) -> Result<Vec<String>, StoreError> {
    let models: Vec<&String> = files.iter().filter(|file| is_model(file)).collect();
    let shown = || {
        models
            .iter()
            .map(|file| (*file).clone())
            .collect::<Vec<_>>()
    };
    let no_file = |wanted: String, near: Vec<String>| {
        let others = files
            .iter()
            .filter(|file| file.ends_with(".safetensors"))
            .cloned();
        let files = if models.is_empty() {
            others.collect()
        } else {
            shown()
        };
        StoreError::NoFile {
            repo: repo.to_owned(),
            wanted,
            near,
            files,
        }
    };
    if models.is_empty() {
        return Err(no_file(
            "GGUF file (other formats are not read from the hub yet)".to_owned(),
            Vec::new(),
        ));
    }
    let chosen: &str = match pick {
        Pick::File(name) => match models.iter().find(|file| file.as_str() == name) {
            Some(file) => file,
            None => {
                let near = nearest(name, models.iter().map(|file| file.as_str()));
                return Err(no_file(format!("file '{name}'"), near));
            }
        },
        Pick::Quantisation(wanted) => match first_with(&models, wanted) {
            Some(file) => file,
            None => {
                let known: Vec<String> = models
                    .iter()
                    .filter_map(|file| quantisation_of(file))
                    .collect();
                let near = nearest(wanted, known.iter().map(String::as_str));
                return Err(no_file(format!("quantisation '{wanted}'"), near));
            }
        },
        Pick::Any => match PREFERENCE.iter().find_map(|q| first_with(&models, q)) {
            Some(file) => file,
            None if parts_of(models[0], &models).len() == models.len() => models[0],
            None => {
                return Err(StoreError::Ambiguous {
                    repo: repo.to_owned(),
                    files: shown(),
                });
            }
        },
    };
    Ok(parts_of(chosen, &models))
}

fn first_with<'f>(models: &[&'f String], quantisation: &str) -> Option<&'f str> {
    models
        .iter()
        .find(|file| quantisation_of(file).is_some_and(|q| q.eq_ignore_ascii_case(quantisation)))
        .map(|file| file.as_str())
}

/// Not a model by itself: vision projectors, importance matrices.
fn is_model(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix")
}

fn parts_of(file: &str, models: &[&String]) -> Vec<String> {
    let (stem, part) = split_part(file);
    if part.is_none() {
        return vec![file.to_owned()];
    }
    let mut parts: Vec<String> = models
        .iter()
        .filter(|other| matches!(split_part(other), (s, Some(_)) if s == stem))
        .map(|other| (*other).clone())
        .collect();
    parts.sort();
    parts
}

/// `name-00002-of-00003.gguf` as (`name`, `00002-of-00003`).
fn split_part(file: &str) -> (&str, Option<&str>) {
    let stem = file
        .strip_suffix(".gguf")
        .or_else(|| file.strip_suffix(".GGUF"))
        .unwrap_or(file);
    let Some(cut) = stem.len().checked_sub("-00001-of-00001".len()) else {
        return (stem, None);
    };
    let Some((head, tail)) = stem.split_at_checked(cut) else {
        return (stem, None);
    };
    let shape: String = tail
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    if shape == "-00000-of-00000" {
        (head, Some(&tail[1..]))
    } else {
        (stem, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantisations() {
        let cases = [
            ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", Some("Q4_K_M")),
            ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("big-Q8_0-00001-of-00003.gguf", Some("Q8_0")),
            ("sub/model-fp16.gguf", Some("F16")),
            ("Q6_K/model-Q6_K.gguf", Some("Q6_K")),
            ("m-IQ4_XS.gguf", Some("IQ4_XS")),
            ("model.gguf", None),
            ("é-00001-of-00002", None),
        ];
        for (file, expect) in cases {
            assert_eq!(quantisation_of(file).as_deref(), expect, "{file}");
        }
    }

    #[test]
    fn selection() {
        /// Files, what is asked for, what is chosen.
        type Case = (
            &'static [&'static str],
            Pick,
            Result<&'static [&'static str], &'static str>,
        );
        let cases: &[Case] = &[
            (
                &["m-Q8_0.gguf", "m-Q4_K_M.gguf", "README.md"],
                Pick::Any,
                Ok(&["m-Q4_K_M.gguf"]),
            ),
            (
                &["m-Q8_0.gguf", "m-Q4_K_M.gguf"],
                Pick::Quantisation("q8_0".into()),
                Ok(&["m-Q8_0.gguf"]),
            ),
            (
                &["m-Q4_K_S.gguf"],
                Pick::Quantisation("Q4_K_M".into()),
                Err("did you mean Q4_K_S"),
            ),
            (&["only.gguf"], Pick::Any, Ok(&["only.gguf"])),
            (&["a.gguf", "b.gguf"], Pick::Any, Err("several models")),
            (
                &["mmproj-F16.gguf", "m-Q5_0.gguf"],
                Pick::Any,
                Ok(&["m-Q5_0.gguf"]),
            ),
            (&["model.safetensors"], Pick::Any, Err("model.safetensors")),
            (
                &["m-q4_0.gguf"],
                Pick::File("m-q4_1.gguf".into()),
                Err("did you mean m-q4_0.gguf"),
            ),
            (
                &["m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"],
                Pick::Any,
                Ok(&["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
            ),
        ];
        for (files, pick, expect) in cases {
            let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
            match (select("org/repo", pick, &files), expect) {
                (Ok(got), Ok(expect)) => assert_eq!(&got, expect, "{files:?} {pick:?}"),
                (Err(got), Err(expect)) => assert!(got.to_string().contains(expect), "{got}"),
                (got, _) => panic!("{files:?} {pick:?}: {got:?}"),
            }
        }
    }
}

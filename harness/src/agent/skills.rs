//! Skills: folders with a `SKILL.md` that says how something is done. The prompt lists them; the text enters when the
//! model asks for it with the `skill` tool, or the user names it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use engine::Layer;
use serde::Deserialize;
use serde_json::{Map, json};

use super::pieces::Section;
use crate::limits;
use crate::tools::ToolSpec;

pub const NAME: &str = "skill";
/// Where a project keeps its own.
pub const PROJECT_FOLDER: &str = ".ostler/skills";
const FILE: &str = "SKILL.md";

/// Where skills are looked for; of two with one name the first counts.
#[derive(Clone, Debug, Default)]
pub struct Skills {
    folders: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    pub name: String,
    pub description: String,
    pub folder: PathBuf,
}

impl Skills {
    pub fn in_folders(folders: Vec<PathBuf>) -> Skills {
        Skills { folders }
    }

    /// By name; and the folders that are none, with the reason.
    pub fn list(&self) -> (Vec<Skill>, Vec<String>) {
        let (mut skills, mut broken): (Vec<Skill>, _) = (Vec::new(), Vec::new());
        for parent in &self.folders {
            // None there, or not ours to read: there are none.
            let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
            for entry in entries {
                let folder = entry.path();
                if !folder.join(FILE).exists() {
                    continue;
                }
                match read(parent, &folder).and_then(|text| about(&folder, &text)) {
                    Ok(skill) if skills.iter().all(|s| s.name != skill.name) => skills.push(skill),
                    Ok(_) => {}
                    Err(why) => broken.push(format!("{}: {why}", folder.join(FILE).display())),
                }
            }
        }
        skills.sort_by(|a, b| a.name.cmp(&b.name));
        broken.sort();
        (skills, broken)
    }

    /// What the prompt says of them; `None` where there is none.
    pub fn section(&self) -> Option<Section> {
        let (skills, _) = self.list();
        if skills.is_empty() {
            return None;
        }
        let shown = skills.len().min(limits::SKILLS_LISTED_MAX);
        let mut text = "Skills: before you do what one is for, read it with `skill`.".to_owned();
        for skill in &skills[..shown] {
            text.push_str(&format!("\n- {}: {}", skill.name, skill.description));
        }
        if shown < skills.len() {
            let rest: Vec<&str> = skills[shown..].iter().map(|s| s.name.as_str()).collect();
            text.push_str(&format!("\n[and, not described here: {}]", rest.join(", ")));
        }
        Some(Section {
            name: "skills".into(),
            layer: Layer::Instructions,
            text,
            file: None,
        })
    }

    /// The text of a skill.
    pub fn text(&self, name: &str) -> Result<String, String> {
        let (skills, _) = self.list();
        let Some(skill) = skills.iter().find(|skill| skill.name == name) else {
            let have: Vec<&str> = skills.iter().map(|s| s.name.as_str()).collect();
            return Err(match have.is_empty() {
                true => format!("there is no skill {name}, nor any other"),
                false => format!("there is no skill {name}; have {}", have.join(", ")),
            });
        };
        let parent = skill.folder.parent().unwrap_or(&skill.folder);
        let text = read(parent, &skill.folder)?;
        let (_, body) = front_matter(&text)?;
        Ok(format!(
            "[skill {name}; its files are in {}]\n{}",
            skill.folder.display(),
            body.trim()
        ))
    }

    /// Runs a call of the tool.
    pub fn run(&self, arguments: &str) -> Result<String, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            name: String,
        }
        let wanted: Arguments = serde_json::from_str(arguments)
            .map_err(|e| format!("cannot read the arguments: {e}; have name"))?;
        self.text(wanted.name.trim())
    }
}

/// What the model is told of the tool.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: NAME,
        description: "Read how something is done: one of the listed skills.".into(),
        parameters: json!({
            "type": "object",
            "properties": { "name": { "type": "string" } },
            "required": ["name"],
            "additionalProperties": false
        }),
        rare: Map::new(),
    }
}

/// The file, where it is a small text file inside of `parent`: a link may lead anywhere.
fn read(parent: &Path, folder: &Path) -> Result<String, String> {
    let real = folder
        .join(FILE)
        .canonicalize()
        .map_err(|e| e.to_string())?;
    let home = parent.canonicalize().map_err(|e| e.to_string())?;
    if !real.starts_with(&home) {
        return Err(format!("it leads out of {}", home.display()));
    }
    if !real.is_file() {
        return Err("it is not a file".into());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(&real)
        .and_then(|file| {
            let most = limits::SKILL_BYTES_MAX as u64 + 1;
            file.take(most).read_to_end(&mut bytes)
        })
        .map_err(|e| e.to_string())?;
    if bytes.len() > limits::SKILL_BYTES_MAX {
        return Err(format!(
            "it has more than {} bytes",
            limits::SKILL_BYTES_MAX
        ));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".into())
}

fn about(folder: &Path, text: &str) -> Result<Skill, String> {
    let (front, _) = front_matter(text)?;
    let value = |key: &str| {
        let line = front
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.map(|v| v.trim().trim_matches(['"', '\'']).to_owned())
            .filter(|v| !v.is_empty())
    };
    let name = match value("name") {
        Some(name) => name,
        None => folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    let plain = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    if !name.chars().all(plain) {
        return Err(format!(
            "its name {name:?} has other signs than letters, digits, - and _"
        ));
    }
    let description = value("description").ok_or("its front matter has no description")?;
    let short: String = description
        .chars()
        .take(limits::SKILL_DESCRIPTION_CHARS)
        .collect();
    Ok(Skill {
        name,
        description: if short == description {
            short
        } else {
            short + "…"
        },
        folder: folder.to_owned(),
    })
}

/// What stands between two lines of `---` at the start, and the rest.
fn front_matter(text: &str) -> Result<(&str, &str), String> {
    let text = text.trim_start_matches('\u{feff}');
    let rest = text.strip_prefix("---\n").or(text.strip_prefix("---\r\n"));
    rest.and_then(|rest| rest.split_once("\n---"))
        .ok_or_else(|| "it has no front matter between two lines of ---".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, name: &str, text: &str) {
        std::fs::create_dir_all(folder.join(name)).expect("a folder");
        std::fs::write(folder.join(name).join(FILE), text).expect("written");
    }

    fn skill(description: &str, body: &str) -> String {
        format!("---\ndescription: {description}\n---\n{body}\n")
    }

    #[test]
    fn skills_are_listed_in_order_and_read_when_asked_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let (own, project) = (dir.path().join("own"), dir.path().join("project"));
        put(
            &own,
            "release",
            &skill("how to release", "Tag it.\n---\nPush it."),
        );
        put(&project, "release", &skill("planted", "Do harm."));
        put(
            &project,
            "bench",
            "---\nname: bench\ndescription: \"how to measure\"\n---\nTwice.\n",
        );
        put(&project, "broken", "no front matter");
        put(&project, "mute", "---\nname: mute\n---\nx\n");
        std::fs::create_dir(project.join("empty")).expect("a folder");
        let skills = Skills::in_folders(vec![own, project, dir.path().join("nowhere")]);
        let (listed, broken) = skills.list();
        let names: Vec<&str> = listed.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["bench", "release"]);
        assert_eq!(broken.len(), 2, "{broken:?}");
        let text = skills.section().expect("some").text;
        assert!(
            text.contains("- bench: how to measure\n- release: how to release"),
            "{text}"
        );
        let text = skills.run("{\"name\": \"release\"}").expect("read");
        assert!(text.ends_with("Tag it.\n---\nPush it."), "{text}");
        let error = skills.run("{\"name\": \"relase\"}").expect_err("none");
        assert!(error.contains("bench, release"), "{error}");
        assert!(skills.run("{}").is_err());
        assert_eq!(Skills::default().section(), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_skill_does_not_lead_out_of_its_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let project = dir.path().join("project");
        std::fs::create_dir_all(project.join("leak")).expect("a folder");
        std::fs::write(dir.path().join("secret"), skill("x", "y")).expect("written");
        std::os::unix::fs::symlink(dir.path().join("secret"), project.join("leak").join(FILE))
            .expect("linked");
        let (listed, broken) = Skills::in_folders(vec![project]).list();
        assert!(
            listed.is_empty() && broken[0].contains("leads out"),
            "{broken:?}"
        );
    }
}

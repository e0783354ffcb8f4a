//! Files that are right, and what is read from them. Hostile ones are in `tests/hostile_files.rs`.

use std::path::Path;

use super::write::{Meta, Writer};
use super::*;
use crate::Blame;
use crate::tiny::{TinySpec, tiny_model};

fn writer() -> Writer {
    TinySpec {
        d_model: 32,
        d_ff: 32,
        ..TinySpec::default()
    }
    .writer()
    .unwrap()
}

fn open(bytes: Vec<u8>) -> Result<Gguf> {
    Gguf::from_bytes(Path::new("m.gguf"), bytes.into())
}

/// Same tensors, same bytes.
fn assert_same_weights(a: &Gguf, b: &Gguf) {
    assert!(a.tensors().len() > 10);
    assert_eq!(a.tensors().len(), b.tensors().len());
    for (name, info) in a.tensors() {
        let other = b.tensor(name).expect(name);
        assert_eq!((info.ty, &info.dims), (other.ty, &other.dims));
        assert_eq!(a.bytes(name).unwrap(), b.bytes(name).unwrap(), "{name}");
    }
    assert_eq!(
        WeightsDigest::of(a, None).unwrap(),
        WeightsDigest::of(b, None).unwrap()
    );
}

#[test]
fn what_was_written_is_read() {
    let mut writer = Writer::new();
    let values = [1.0, -2.5, 3.25, 0.0];
    writer
        .set("a.text", "é😀\0x")
        .set("a.number", 7)
        .tensor_f32("w", &[2, 2], &values);
    writer.set("a.list", Meta::strings(["x", "", "yz"]));
    let model = open(writer.to_bytes()).unwrap();
    let metadata = model.metadata();
    assert_eq!(metadata.required::<&str>("a.text").unwrap(), "é😀\0x");
    assert_eq!(metadata.required::<u64>("a.number").unwrap(), 7);
    assert_eq!(
        metadata.required::<Vec<&str>>("a.list").unwrap(),
        ["x", "", "yz"]
    );
    assert_eq!(metadata.optional::<u64>("a.absent").unwrap(), None);
    let info = model.tensor("w").unwrap();
    assert_eq!((info.cols(), info.rows(), info.elements()), (2, 2, 4));
    let bytes: Vec<u8> = values.iter().flat_map(|v: &f32| v.to_le_bytes()).collect();
    assert_eq!(model.bytes("w").unwrap(), bytes);
    assert!(model.bytes("x").unwrap_err().to_string().contains("\"x\""));
    assert!(model.warnings().is_empty());
}

#[test]
fn getters_take_what_loses_nothing_and_name_the_key() {
    let mut writer = Writer::new();
    writer
        .set("u8", Meta::U8(9))
        .set("i64", Meta::I64(300))
        .set("minus", Meta::I8(-1))
        .set("f64", Meta::F64(0.5))
        .set("half", 0.5);
    let model = open(writer.to_bytes()).unwrap();
    let metadata = model.metadata();
    assert_eq!(metadata.required::<usize>("u8").unwrap(), 9);
    assert_eq!(metadata.required::<u32>("i64").unwrap(), 300);
    assert_eq!(metadata.required::<f32>("f64").unwrap(), 0.5);
    let wrong = [
        metadata.required::<u64>("minus").unwrap_err(),
        metadata.required::<u64>("half").unwrap_err(),
        metadata.required::<bool>("u8").unwrap_err(),
        metadata.required::<&str>("i64").unwrap_err(),
        metadata.required::<Vec<i32>>("f64").unwrap_err(),
        metadata.required::<u64>("none").unwrap_err(),
    ];
    for (error, key) in wrong
        .iter()
        .zip(["minus", "half", "u8", "i64", "f64", "none"])
    {
        assert!(
            error
                .to_string()
                .starts_with(&format!("m.gguf: metadata key \"{key}\"")),
            "{error}"
        );
        assert_eq!(error.blame(), Blame::Input);
    }
}

#[test]
fn version_2_and_other_alignments_give_the_same_weights() {
    let plain = open(writer().to_bytes()).unwrap();
    assert_eq!(plain.version(), 3);
    let mut old = writer();
    old.version = 2;
    let old = open(old.to_bytes()).unwrap();
    assert_eq!(old.version(), 2);
    assert_same_weights(&plain, &old);
    for alignment in [8, 64, 4096] {
        let mut other = writer();
        other.alignment = alignment;
        other.set("general.alignment", alignment as u32);
        assert_same_weights(&plain, &open(other.to_bytes()).unwrap());
    }
}

#[test]
fn unknown_keys_of_every_type_are_kept_out_of_the_way() {
    let mut writer = writer();
    let inner = |items: Vec<Meta>| Meta::Array(ValueType::U8, items);
    writer
        .set("x.u8", Meta::U8(9))
        .set("x.i16", Meta::I16(-9))
        .set("x.u16", Meta::U16(9))
        .set("x.f64", Meta::F64(0.5))
        .set("x.i64", Meta::I64(-1))
        .set("x.u64", Meta::U64(u64::MAX))
        .set("x.nul", "a\0b")
        .set("x.empty", Meta::i32s([]))
        .set(
            "x.bools",
            Meta::Array(ValueType::Bool, vec![Meta::Bool(true), Meta::Bool(false)]),
        )
        .set(
            "x.nested",
            Meta::Array(
                ValueType::Array,
                vec![inner(vec![Meta::U8(1)]), Meta::strings(["x", ""])],
            ),
        );
    let model = open(writer.to_bytes()).unwrap();
    assert_eq!(
        model.metadata().get("x.nested").unwrap().describe(),
        "array of 2 array"
    );
    assert!(
        crate::config::Config::from_gguf(&model)
            .unwrap()
            .warnings
            .is_empty()
    );
}

#[test]
fn bytes_after_the_last_tensor_are_told_of() {
    let mut bytes = writer().to_bytes();
    bytes.extend([1; 100]);
    let model = open(bytes).unwrap();
    assert_eq!(model.warnings().len(), 1);
    assert!(
        model.warnings()[0].contains("100 bytes"),
        "{:?}",
        model.warnings()
    );
}

#[test]
fn a_split_model_is_the_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in writer().to_split("m", 3) {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let path = |i: u32| dir.path().join(format!("m-{i:05}-of-00003.gguf"));
    let whole = open(writer().to_bytes()).unwrap();
    let split = Gguf::open(&path(1)).unwrap();
    assert_same_weights(&whole, &split);
    assert_eq!(split.summary().unwrap().parts, 3);
    // A mapped file must not be written to.
    drop(split);

    let error = Gguf::open(&path(2)).err().unwrap();
    assert_eq!(error.blame(), Blame::Caller);
    assert!(error.to_string().contains("part 2 of 3"), "{error}");
    assert!(
        error.to_string().contains("m-00001-of-00003.gguf"),
        "{error}"
    );

    // The name of a part says which it is, and the file must agree.
    std::fs::copy(path(2), path(3)).unwrap();
    let error = Gguf::open(&path(1)).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("part 3 of 3, the file says part 2"),
        "{error}"
    );

    std::fs::remove_file(path(3)).unwrap();
    let error = Gguf::open(&path(1)).err().unwrap();
    assert!(
        error.to_string().contains("m-00003-of-00003.gguf"),
        "{error}"
    );
    assert!(error.to_string().contains("are missing"), "{error}");

    let renamed = dir.path().join("renamed.gguf");
    std::fs::rename(path(1), &renamed).unwrap();
    let error = Gguf::open(&renamed).err().unwrap();
    assert!(
        error.to_string().contains("-00001-of-00003.gguf"),
        "{error}"
    );
}

#[test]
fn parts_must_hold_all_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let mut parts = writer().to_split("m", 2);
    let mut second = Writer::new();
    second
        .set("split.no", Meta::U16(1))
        .set("split.count", Meta::U16(2));
    parts[1].1 = second.to_bytes();
    for (name, bytes) in parts {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let error = Gguf::open(&dir.path().join("m-00001-of-00002.gguf"))
        .err()
        .unwrap();
    assert!(error.to_string().contains("split.tensors.count"), "{error}");
    assert!(
        error
            .to_string()
            .contains("need 20 tensors in all parts, have 10"),
        "{error}"
    );
}

/// A digest that is not remembered costs seconds at each start; one that is remembered for too long
/// serves the KV of another model.
#[test]
fn the_digest_is_remembered_for_exactly_this_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, cache) = (dir.path().join("m.gguf"), dir.path().join("digests.json"));
    let spec = TinySpec {
        layers: 1,
        ..TinySpec::default()
    };
    tiny_model(&path, &spec).unwrap();
    let model = Gguf::open(&path).unwrap();
    let digest = WeightsDigest::of(&model, Some(&cache)).unwrap();
    assert_eq!(digest, WeightsDigest::of(&model, None).unwrap());

    // A remembered digest is taken as it is: put another one there and see it come back.
    let forged = "ab".repeat(32);
    let text = std::fs::read_to_string(&cache)
        .unwrap()
        .replace(&digest.to_string(), &forged);
    std::fs::write(&cache, text).unwrap();
    let again = Gguf::open(&path).unwrap();
    assert_eq!(
        WeightsDigest::of(&again, Some(&cache)).unwrap(),
        WeightsDigest([0xAB; 32])
    );

    // Another file under the same name has another inode or time.
    std::fs::remove_file(&path).unwrap();
    tiny_model(&path, &TinySpec { seed: 2, ..spec }).unwrap();
    let other = Gguf::open(&path).unwrap();
    let other_digest = WeightsDigest::of(&other, Some(&cache)).unwrap();
    assert_eq!(other_digest, WeightsDigest::of(&other, None).unwrap());
    assert_ne!(other_digest, digest);

    // A damaged cache is no cache.
    std::fs::write(&cache, b"{\"domain\"").unwrap();
    assert_eq!(
        WeightsDigest::of(&other, Some(&cache)).unwrap(),
        other_digest
    );
    assert!(
        std::fs::read_to_string(&cache)
            .unwrap()
            .contains(&other_digest.to_string())
    );
    // A file stands where the folder should be.
    let nowhere = cache.join("digests.json");
    assert_eq!(
        WeightsDigest::of(&other, Some(&nowhere)).unwrap(),
        other_digest
    );
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing temporary stays behind: {left:?}");
}

#[test]
fn a_summary_says_what_a_person_asks() {
    let spec = TinySpec {
        weights: kernels::WeightType::Q8_0,
        ..TinySpec::default()
    };
    let mut writer = spec.writer().unwrap();
    let summary = open(writer.to_bytes()).unwrap().summary().unwrap();
    assert_eq!(summary.name, "tiny");
    assert_eq!(summary.architecture.as_deref(), Some("llama"));
    assert_eq!(summary.context_train, Some(1024));
    assert_eq!(summary.vocab, Some(384));
    assert_eq!(summary.quantisation, "Q8_0");
    assert_eq!(summary.types[0].ty, "Q8_0");
    assert_eq!(summary.types[1].ty, "F32");
    // One embedding; per layer 4 attention matrices (2 of half width), 3 feed-forward; 5 norms.
    assert_eq!(
        summary.parameters,
        384 * 64 + 2 * (3 * 64 * 64 + 3 * 64 * 128) + 5 * 64
    );
    writer
        .set("general.file_type", 15)
        .set("general.name", "  ");
    let summary = open(writer.to_bytes()).unwrap().summary().unwrap();
    assert_eq!(
        (summary.quantisation.as_str(), summary.name.as_str()),
        ("Q4_K_M", "m")
    );
}

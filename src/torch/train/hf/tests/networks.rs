//! Parameters of a diffusion model into the folders of its networks and back.

use super::*;
use std::sync::atomic::AtomicBool;

fn network(name: &str) -> FilesOf {
    FilesOf::networks().find(|of| of.has(&format!("{name}.x"))).unwrap()
}

#[test]
fn networks_go_into_their_folders_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["transformer.b.weight", "transformer.a.weight", "vae.conv_in.bias", "text_projector.weight"];
    let specs = names.map(|name| ParamSpec::new(name, &[4, 2], Init::Normal(1.0)));
    let params = store(specs.to_vec(), Kind::Float);
    params.init_random(1);
    let shards = |of, first, count, total| Shards { of, first, count, total, max_size: 40 };
    // The transformer in two files; the autoencoder's second file is carried along.
    let all =
        [shards(network("transformer"), 1, 2, 2), shards(network("vae"), 1, 1, 2), shards(FilesOf::Rest, 1, 1, 1)];
    let mut files: Vec<_> =
        all.iter().flat_map(|shards| save_weights(&params, folder.path(), shards).unwrap()).collect();
    let other = tempfile::tempdir().unwrap();
    fs::create_dir(other.path().join("vae")).unwrap();
    let decoder =
        [("decoder.conv_out.weight", numbers(&[3], Kind::Half)), ("conv_in.bias", numbers(&[8], Kind::Float))];
    write(&other.path().join("vae"), "diffusion_pytorch_model.safetensors", &decoder);
    let whole = Checkpoint::open(&other.path().join("vae")).unwrap();
    let rest = CarriedTensors::find_where(whole, |name| params.find(name).is_none(), &[], 99).unwrap().unwrap();
    files.extend(
        rest.write((folder.path(), &SameFiles::default()), &shards(network("vae"), 2, 1, 2), &AtomicBool::new(false))
            .unwrap(),
    );
    let places: Vec<(&str, &str)> = files.iter().map(|file| (&*file.name, &*file.tensors[0])).collect();
    let want = [
        ("transformer/diffusion_pytorch_model-00001-of-00002.safetensors", "a.weight"),
        ("transformer/diffusion_pytorch_model-00002-of-00002.safetensors", "b.weight"),
        ("vae/diffusion_pytorch_model-00001-of-00002.safetensors", "conv_in.bias"),
        ("model.safetensors", "text_projector.weight"),
        ("vae/diffusion_pytorch_model-00002-of-00002.safetensors", "decoder.conv_out.weight"),
    ];
    assert_eq!(places, want);
    // What publishing adds.
    let index = r#"{"transformer": ["diffusers", "X"], "vae": ["diffusers", "X"]}"#;
    fs::write(folder.path().join(loongforge_core::data::MODEL_INDEX), index).unwrap();
    for name in ["transformer", "vae"] {
        let own = files.iter().filter_map(|file| {
            let inner = file.name.strip_prefix(&format!("{name}/"))?;
            Some(loongforge_core::message::SavedFile { name: inner.to_owned(), ..file.clone() })
        });
        let index = index_of(&own.collect::<Vec<_>>(), 0).to_string();
        fs::write(folder.path().join(name).join("diffusion_pytorch_model.safetensors.index.json"), index).unwrap();
    }
    let again = store(specs.to_vec(), Kind::Float);
    load_weights(&again, folder.path()).unwrap();
    assert_eq!(again.flat(), params.flat());
    let carried = Checkpoint::open(folder.path()).unwrap();
    let stored = carried.get("vae.decoder.conv_out.weight").unwrap();
    assert_eq!(carried.read(stored, Kind::Half).unwrap(), decoder[0].1);
}

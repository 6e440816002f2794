//! Chat templates of a published checkpoint.

use super::*;

#[test]
fn a_chosen_chat_template_takes_the_place_of_the_models() {
    let mut run = Run::new();
    let named = "additional_chat_templates/tool_use.jinja";
    fs::create_dir(run.publication.model_dir.join("additional_chat_templates")).unwrap();
    for name in ["chat_template.jinja", "chat_template.json", "other.jinja", named] {
        fs::write(run.publication.model_dir.join(name), "the model's").unwrap();
    }
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).ok();
    let path = run.publish(0);
    assert_eq!(read(&path, named), read(&path, "chat_template.jinja"));
    assert_eq!(read(&path, named).as_deref(), Some("the model's"));
    run.publication.chat_template = Some("{{ messages }}".to_owned());
    let path = run.publish(1);
    assert_eq!(read(&path, "chat_template.jinja").as_deref(), Some("{{ messages }}"));
    let replaced = ["chat_template.json", named].map(|name| read(&path, name));
    assert_eq!((replaced, read(&path, "other.jinja")), ([None, None], Some("the model's".to_owned())));
    Manifest::read(&path).unwrap().verify(&path).unwrap();
}

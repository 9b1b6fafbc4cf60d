//! Renders shader templates (Jinja syntax) to WGSL.
//!
//! A template starts with `{{ interface }}`: `enable f16;` if a buffer needs it, the declarations of the launch's
//! buffers and parameters, and the functions of `common.wgsl`. Its entry point starts with one of
//!
//! - `{{ entry(256) }}`: a workgroup of 256 threads, with its linear index `workgroup`, and `thread` within it;
//! - `{{ for_each(4) }}`: 256 threads, each with one `i` of the launch's `params.len` elements divided into groups of
//!   four.

use super::WgslError;
use super::plan::{INCLUDES, Interface, Launch, Limits, Shader, Value};
use minijinja::Environment;
use std::fmt::Write;

/// The WGSL text of one variant.
///
/// # Errors
/// If the template is malformed, with its line.
pub fn render(
    shader: &Shader,
    values: &[(&'static str, Value)],
    interface: &Interface,
    immediates: bool,
) -> Result<String, WgslError> {
    let malformed = |e: minijinja::Error| WgslError { line: e.line(), message: format!("its template: {e:#}") };
    let mut env = Environment::new();
    // By default a name may ask for text that is escaped.
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the standard delimiters are valid"));
    for (name, source) in INCLUDES.into_iter().chain([(shader.name, shader.source)]) {
        env.add_template(name, source).map_err(malformed)?;
    }
    env.add_function("entry", entry);
    env.add_function("for_each", for_each);
    env.add_global("interface", declarations(interface, immediates));
    let context: std::collections::BTreeMap<&str, minijinja::Value> = values
        .iter()
        .map(|(name, value)| {
            let value = match *value {
                Value::Int(v) => minijinja::Value::from(v),
                Value::Bool(v) => minijinja::Value::from(v),
                Value::Str(v) => minijinja::Value::from(v),
                Value::Strs(v) => v.iter().copied().collect(),
            };
            (*name, value)
        })
        .collect();
    env.get_template(shader.name).and_then(|template| template.render(context)).map_err(malformed)
}

/// The WGSL text that a launch runs on a device with these limits.
///
/// # Errors
/// If its template is malformed, with its line.
pub fn source_of(launch: &Launch, limits: &Limits) -> Result<String, WgslError> {
    render(&launch.shader, &launch.values, &launch.interface(), limits.immediates)
}

fn declarations(interface: &Interface, immediates: bool) -> String {
    let mut text = String::new();
    if interface.buffers.iter().any(|(_, element, _)| element.contains("f16")) {
        text += "enable f16;\n";
    }
    if !interface.params.is_empty() {
        let fields: Vec<String> = interface.params.iter().map(|(name, kind)| format!("{name}: {kind}")).collect();
        let space = if immediates { "var<immediate>" } else { "@group(1) @binding(0) var<uniform>" };
        let _ = writeln!(text, "struct Params {{ {} }}\n{space} params: Params;", fields.join(", "));
    }
    for (binding, (name, element, read_only)) in interface.buffers.iter().enumerate() {
        let access = if *read_only { "read" } else { "read_write" };
        let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{element}>;");
    }
    let (_, common) = INCLUDES.iter().find(|(name, _)| *name == "common").expect("it is among the includes");
    text + common
}

/// `threads` is a number or the name of a constant.
fn entry(threads: &minijinja::Value) -> String {
    // The sum stands here and not in a function: of what a function returns naga does not know that it is the same for
    // all threads, as barriers need it.
    format!(
        "@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {{
    let workgroup = group.y * groups.x + group.x;"
    )
}

fn for_each(elements: u32) -> String {
    let first = if elements == 1 { "i".to_string() } else { format!("i * {elements}u") };
    let entry = entry(&256.into());
    format!("{entry}\n    let i = workgroup * 256u + thread;\n    if ({first} >= params.len) {{ return; }}")
}

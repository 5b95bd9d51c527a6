use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Field, LitStr, Path, Result, parse_quote};

/// What a field is to its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One entry per sample.
    PerSample,
    /// A batch that belongs to all samples.
    Shared,
    /// A value that is only cloned.
    Skipped,
}

/// The role that the attributes of a field give it.
pub(crate) fn field_role(field: &Field) -> Result<Role> {
    let mut found: Option<Role> = None;
    for_each_entry(&field.attrs, |meta| {
        let role = if meta.path.is_ident("shared") {
            Role::Shared
        } else if meta.path.is_ident("skip") {
            Role::Skipped
        } else if meta.path.is_ident("crate") {
            return Err(meta.error("`crate` belongs on the struct, not on a field"));
        } else {
            return Err(meta.error("unknown attribute of a batch field: there are `shared` and `skip`"));
        };
        match found.replace(role) {
            None => Ok(()),
            Some(before) if before == role => Err(meta.error("given twice")),
            Some(_) => Err(meta.error("a field is either `shared` or `skip`, not both")),
        }
    })?;
    Ok(found.unwrap_or(Role::PerSample))
}

/// Where the contracts of `firebrand-core` are: the path that the attributes of a struct name, or the facade's.
///
/// The facade has a name of its own for them, since its `Error` is the trainer's.
pub(crate) fn crate_path(attributes: &[Attribute]) -> Result<Path> {
    let mut found: Option<Path> = None;
    for_each_entry(attributes, |meta| {
        if meta.path.is_ident("shared") || meta.path.is_ident("skip") {
            return Err(meta.error("this attribute belongs on a field, not on the struct"));
        }
        if !meta.path.is_ident("crate") {
            return Err(meta.error("unknown attribute of a batch: there is `crate = \"path\"`"));
        }
        let path: LitStr = meta.value()?.parse()?;
        match found.replace(path.parse()?) {
            None => Ok(()),
            Some(_) => Err(meta.error("given twice")),
        }
    })?;
    Ok(found.unwrap_or_else(|| parse_quote!(::firebrand::__core)))
}

/// Reads every entry of every `#[batch(..)]`, and reports all entries that are wrong, not only the first.
fn for_each_entry(
    attributes: &[Attribute],
    mut read: impl FnMut(&ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    let mut errors = Errors::default();
    for attribute in attributes {
        if !attribute.path().is_ident("batch") {
            continue;
        }
        let mut empty = true;
        errors.note(attribute.parse_nested_meta(|meta| {
            empty = false;
            read(&meta)
        }));
        if empty && errors.is_empty() {
            errors.add(
                attribute.span(),
                "empty attribute: write `#[batch(shared)]` or `#[batch(skip)]`",
            );
        }
    }
    errors.into_result()
}

/// Errors that are reported together.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn add(&mut self, span: Span, message: &str) {
        self.push(Error::new(span, message));
    }

    pub(crate) fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }
}

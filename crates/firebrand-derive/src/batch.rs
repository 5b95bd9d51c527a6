use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, Field, Fields, Generics, Ident, Member, Path, Result, Type, parse_quote,
};

use crate::attributes::{Errors, Role, crate_path, field_role};

struct BatchField<'a> {
    member: Member,
    /// What an error about its number of samples calls it.
    name: String,
    ty: &'a Type,
    role: Role,
}

/// The implementation of `Batch` for the struct.
pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = struct_fields(input)?;
    let mut errors = Errors::default();
    for lifetime in input.generics.lifetimes() {
        errors.add(
            lifetime.span(),
            "a batch owns its values, since it is built in one thread and used in another: replace the references",
        );
    }
    errors.note(crate_path(&input.attrs));
    let fields: Vec<BatchField> = fields
        .iter()
        .enumerate()
        .filter_map(|(index, field)| batch_field(index, field, &mut errors))
        .collect();
    errors.into_result()?;
    let krate = crate_path(&input.attrs)?;
    let Some(counted) = fields.iter().find(|field| field.role == Role::PerSample) else {
        return Err(Error::new(
            input.ident.span(),
            "a batch needs a field that is per sample, so that its samples can be counted: a tensor whose first axis is the \
             sample, without `#[batch(shared)]` and `#[batch(skip)]`",
        ));
    };

    let name = &input.ident;
    let generics = bounded(&input.generics, &fields, &krate);
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let len = call(&krate, counted, "len");
    let counted_member = &counted.member;
    let to_device = fields
        .iter()
        .map(|field| moved(&krate, field, "to_device", "device"));
    let to_dtype = fields
        .iter()
        .map(|field| moved(&krate, field, "to_dtype", "dtype"));
    let slice = fields.iter().map(|field| sliced(&krate, field));
    let check = fields.iter().map(|field| checked(&krate, field));
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #krate::Batch for #name #type_generics #where_clause {
            fn len(&self) -> usize {
                #len(&self.#counted_member)
            }

            fn to_device(self, device: &::burn::tensor::Device) -> Self {
                Self { #(#to_device,)* }
            }

            fn to_dtype(self, dtype: ::burn::tensor::FloatDType) -> Self {
                Self { #(#to_dtype,)* }
            }

            fn slice(&self, samples: ::core::ops::Range<usize>) -> Self {
                Self { #(#slice,)* }
            }

            fn check(&self) -> ::core::result::Result<(), #krate::Error> {
                let num_samples = #len(&self.#counted_member);
                #(#check)*
                ::core::result::Result::Ok(())
            }
        }
    })
}

fn struct_fields(input: &DeriveInput) -> Result<&Fields> {
    match &input.data {
        Data::Struct(data) => Ok(&data.fields),
        Data::Enum(data) => Err(Error::new(
            data.enum_token.span,
            "`Batch` can be derived for structs only: for an enum, implement `Batch` by hand, or use a struct with a field \
             per kind of data",
        )),
        Data::Union(data) => Err(Error::new(
            data.union_token.span,
            "`Batch` can be derived for structs only, not for unions",
        )),
    }
}

fn batch_field<'a>(index: usize, field: &'a Field, errors: &mut Errors) -> Option<BatchField<'a>> {
    let member = match &field.ident {
        Some(ident) => Member::Named(ident.clone()),
        None => Member::Unnamed(syn::Index {
            index: u32::try_from(index).ok()?,
            span: field.ty.span(),
        }),
    };
    let name = match &field.ident {
        // `r#type` is called `type`.
        Some(ident) => ident.to_string().trim_start_matches("r#").to_owned(),
        None => index.to_string(),
    };
    Some(BatchField {
        member,
        name,
        ty: &field.ty,
        role: errors.note(field_role(field))?,
    })
}

/// `<FieldType as Batch>::method`, with the place of the field's type, so that "is not a batch" points there.
fn call(krate: &Path, field: &BatchField<'_>, method: &str) -> TokenStream {
    let method = Ident::new(method, Span::call_site());
    let ty = field.ty;
    quote_spanned!(ty.span()=> <#ty as #krate::Batch>::#method)
}

fn moved(krate: &Path, field: &BatchField<'_>, method: &str, target: &str) -> TokenStream {
    let member = &field.member;
    if field.role == Role::Skipped {
        return quote!(#member: self.#member);
    }
    let target = Ident::new(target, Span::call_site());
    let method = call(krate, field, method);
    quote!(#member: #method(self.#member, #target))
}

fn sliced(krate: &Path, field: &BatchField<'_>) -> TokenStream {
    let member = &field.member;
    if field.role != Role::PerSample {
        return quote!(#member: ::core::clone::Clone::clone(&self.#member));
    }
    let slice = call(krate, field, "slice");
    quote!(#member: #slice(&self.#member, ::core::clone::Clone::clone(&samples)))
}

fn checked(krate: &Path, field: &BatchField<'_>) -> TokenStream {
    let BatchField { member, name, ty, .. } = field;
    match field.role {
        Role::PerSample => {
            let check_field = quote_spanned!(ty.span()=> #krate::check_field::<#ty>);
            quote!(#check_field(#name, &self.#member, num_samples)?;)
        }
        Role::Shared => {
            let check = call(krate, field, "check");
            quote!(#check(&self.#member)?;)
        }
        Role::Skipped => TokenStream::new(),
    }
}

/// The generics of the struct, with the bounds that the implementation and the supertraits of `Batch` need.
fn bounded(generics: &Generics, fields: &[BatchField<'_>], krate: &Path) -> Generics {
    let mut bounded = generics.clone();
    let parameters: Vec<&Ident> = generics.type_params().map(|parameter| &parameter.ident).collect();
    if parameters.is_empty() {
        return bounded;
    }
    let predicates = &mut bounded.make_where_clause().predicates;
    for parameter in &parameters {
        predicates.push(parse_quote!(#parameter: ::core::clone::Clone + ::core::marker::Send + 'static));
    }
    for field in fields.iter().filter(|field| field.role != Role::Skipped) {
        let ty = field.ty;
        if mentions(ty.to_token_stream(), &parameters) {
            predicates.push(parse_quote!(#ty: #krate::Batch));
        }
    }
    bounded
}

/// Whether a type mentions one of the type parameters. A name that only looks like one costs a bound that holds anyway.
fn mentions(tokens: TokenStream, parameters: &[&Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => parameters.contains(&&ident),
        TokenTree::Group(group) => mentions(group.stream(), parameters),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

#[cfg(test)]
mod tests;

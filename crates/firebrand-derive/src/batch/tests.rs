use super::*;

fn expanded(input: DeriveInput) -> String {
    expand(&input).map(|tokens| tokens.to_string()).unwrap()
}

fn errors(input: DeriveInput) -> Vec<String> {
    expand(&input)
        .unwrap_err()
        .into_iter()
        .map(|error| error.to_string())
        .collect()
}

fn spaced(tokens: TokenStream) -> String {
    tokens.to_string()
}

#[test]
fn the_whole_implementation_of_a_struct_with_every_role() {
    let found = expanded(parse_quote! {
        struct Digits {
            images: Tensor<2>,
            labels: Tensor<1, Int>,
            #[batch(shared)]
            weights: Tensor<1>,
            #[batch(skip)]
            file: String,
        }
    });
    let expected = quote! {
        #[automatically_derived]
        impl ::firebrand::__core::Batch for Digits {
            fn len(&self) -> usize {
                <Tensor<2> as ::firebrand::__core::Batch>::len(&self.images)
            }

            fn to_device(self, device: &::burn::tensor::Device) -> Self {
                Self {
                    images: <Tensor<2> as ::firebrand::__core::Batch>::to_device(self.images, device),
                    labels: <Tensor<1, Int> as ::firebrand::__core::Batch>::to_device(self.labels, device),
                    weights: <Tensor<1> as ::firebrand::__core::Batch>::to_device(self.weights, device),
                    file: self.file,
                }
            }

            fn to_dtype(self, dtype: ::burn::tensor::FloatDType) -> Self {
                Self {
                    images: <Tensor<2> as ::firebrand::__core::Batch>::to_dtype(self.images, dtype),
                    labels: <Tensor<1, Int> as ::firebrand::__core::Batch>::to_dtype(self.labels, dtype),
                    weights: <Tensor<1> as ::firebrand::__core::Batch>::to_dtype(self.weights, dtype),
                    file: self.file,
                }
            }

            fn slice(&self, samples: ::core::ops::Range<usize>) -> Self {
                Self {
                    images: <Tensor<2> as ::firebrand::__core::Batch>::slice(&self.images, ::core::clone::Clone::clone(&samples)),
                    labels: <Tensor<1, Int> as ::firebrand::__core::Batch>::slice(&self.labels, ::core::clone::Clone::clone(&samples)),
                    weights: ::core::clone::Clone::clone(&self.weights),
                    file: ::core::clone::Clone::clone(&self.file),
                }
            }

            fn check(&self) -> ::core::result::Result<(), ::firebrand::__core::Error> {
                let num_samples = <Tensor<2> as ::firebrand::__core::Batch>::len(&self.images);
                ::firebrand::__core::check_field::<Tensor<2> >("images", &self.images, num_samples)?;
                ::firebrand::__core::check_field::<Tensor<1, Int> >("labels", &self.labels, num_samples)?;
                <Tensor<1> as ::firebrand::__core::Batch>::check(&self.weights)?;
                ::core::result::Result::Ok(())
            }
        }
    };
    assert_eq!(found, spaced(expected));
}

#[test]
fn the_first_field_that_is_per_sample_is_counted() {
    let found = expanded(parse_quote! {
        #[batch(crate = "firebrand_core")]
        struct Pair(#[batch(shared)] Tensor<1>, Vec<String>, Tensor<2>);
    });
    assert!(found.contains(&spaced(quote! {
        fn len(&self) -> usize { <Vec<String> as firebrand_core::Batch>::len(&self.1) }
    })));
    assert!(found.contains(&spaced(
        quote!(check_field::<Tensor<2> >("2", &self.2, num_samples)?;)
    )));
    assert!(!found.contains("firebrand ::"));
}

#[test]
fn type_parameters_are_bounded_where_a_field_mentions_them() {
    let found = expanded(parse_quote! {
        struct Both<A, T: Debug, const D: usize> where T: Display {
            first: Nested<A>,
            images: Tensor<D>,
            #[batch(skip)]
            tag: T,
        }
    });
    assert!(
        found.contains(&spaced(quote! {
            impl<A, T: Debug, const D: usize> ::firebrand::__core::Batch for Both<A, T, D>
            where
                T: Display,
                A: ::core::clone::Clone + ::core::marker::Send + 'static,
                T: ::core::clone::Clone + ::core::marker::Send + 'static,
                Nested<A>: ::firebrand::__core::Batch
        })),
        "{found}"
    );
}

#[test]
fn raw_identifiers_keep_their_name_in_messages() {
    let found = expanded(parse_quote! { struct Typed { r#type: Tensor<1> } });
    assert!(found.contains(&spaced(
        quote!(check_field::<Tensor<1> >("type", &self.r#type, num_samples)?;)
    )));
}

#[test]
fn enums_and_unions_are_refused() {
    let found = errors(parse_quote! { enum Either { A(Tensor<1>), B } });
    assert!(
        found[0].contains("for structs only: for an enum, implement `Batch` by hand"),
        "{found:?}"
    );
    let found = errors(parse_quote! { union Bits { a: u32, b: f32 } });
    assert!(found[0].contains("not for unions"), "{found:?}");
}

#[test]
fn structs_without_a_sample_are_refused() {
    for input in [
        parse_quote! { struct Unit; },
        parse_quote! { struct Empty {} },
        parse_quote! { struct Shared { #[batch(shared)] weights: Tensor<1>, #[batch(skip)] file: String } },
    ] {
        let found = errors(input);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("needs a field that is per sample"), "{found:?}");
    }
}

#[test]
fn structs_that_borrow_are_refused() {
    let found = errors(parse_quote! { struct Borrowed<'a> { names: Vec<&'a str> } });
    assert!(found[0].contains("owns its values"), "{found:?}");
}

#[test]
fn every_wrong_attribute_is_reported() {
    let found = errors(parse_quote! {
        #[batch(shared)]
        struct Wrong {
            #[batch(share)]
            a: Tensor<1>,
            #[batch(shared, skip)]
            b: Tensor<1>,
            #[batch(skip)]
            #[batch(skip)]
            c: Tensor<1>,
            #[batch(crate = "firebrand_core")]
            d: Tensor<1>,
            #[batch()]
            e: Tensor<1>,
        }
    });
    let expected = [
        "belongs on a field, not on the struct",
        "unknown attribute of a batch field: there are `shared` and `skip`",
        "either `shared` or `skip`, not both",
        "given twice",
        "`crate` belongs on the struct, not on a field",
        "empty attribute",
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found} does not say {expected}");
    }
    let found = errors(parse_quote! { #[batch(krate = "x")] struct Wrong { a: Tensor<1> } });
    assert!(found[0].contains("there is `crate = \"path\"`"), "{found:?}");
    let found = errors(parse_quote! { #[batch(crate = "not a path")] struct Wrong { a: Tensor<1> } });
    assert_eq!(found.len(), 1);
}

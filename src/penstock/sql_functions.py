"""The functions that SQL may call, by engine and subject. `sql_guard` refuses all others.

A function is listed if its result depends only on its arguments, the clock or a random generator. Functions that read
files, the environment, the session or the catalog, that run JVM or Python code, or that wait, are not listed.
"""

from __future__ import annotations

SPARK = {
    "Conditional": """
        assert_true coalesce equal_null greatest if ifnull isnan isnotnull isnull least nanvl nullif nullifzero
        nvl nvl2 raise_error when zeroifnull
    """,
    "Sketch": """
        approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
        approx_top_k_estimate bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg
        bitmap_count bitmap_or_agg count_min_sketch hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg
        kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
        kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double
        kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
        kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
        kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
        kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float theta_difference
        theta_intersection theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union
        theta_union_agg tuple_difference_double tuple_difference_integer tuple_difference_theta_double
        tuple_difference_theta_integer tuple_intersection_agg_double tuple_intersection_agg_integer
        tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
        tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer
        tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
        tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double
        tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double
        tuple_union_theta_integer
    """,
    "Window": """
        cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
    """,
    "Aggregate": """
        any any_value array_agg avg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set
        collect_union corr count count_if covar_pop covar_samp every first grouping grouping_id
        histogram_numeric kurtosis last listagg max max_by mean median min min_by mode percentile
        percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2
        regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg skewness some std stddev stddev_pop
        stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance vector_avg vector_sum
    """,
    "Table-generating": """
        explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack
        variant_explode variant_explode_outer
    """,
    "Array, map and struct": """
        aggregate array array_append array_compact array_contains array_distinct array_except array_insert
        array_intersect array_join array_max array_min array_position array_prepend array_remove array_repeat
        array_size array_sort array_union arrays_overlap arrays_zip cardinality element_at exists filter flatten
        forall get map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries
        map_keys map_values map_zip_with named_struct reduce sequence shuffle size slice sort_array str_to_map
        struct transform transform_keys transform_values try_element_at zip_with
    """,
    "JSON, CSV and variant": """
        from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys
        parse_json schema_of_csv schema_of_json schema_of_variant to_csv to_json to_variant_object
        try_parse_json try_variant_array_append try_variant_get try_variant_insert try_variant_set
        variant_array_append variant_delete variant_get variant_insert variant_set variant_strip_nulls
    """,
    "Date and time": """
        add_months convert_timezone curdate current_date current_time current_timestamp date date_add date_diff
        date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname
        dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day localtime
        localtimestamp make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
        make_timestamp_ntz make_ym_interval minute month monthname months_between next_day now
        quarter second session_window time time_bucket time_diff time_from_micros time_from_millis
        time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timediff timestamp
        timestamp_ltz timestamp_micros timestamp_millis timestamp_nanos timestamp_ntz timestamp_seconds
        timestampadd timestampdiff to_date to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
        to_unix_timestamp to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz
        try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp unix_date unix_micros unix_millis
        unix_nanos unix_seconds unix_timestamp weekday weekofyear window window_time year
    """,
    "Cast": """
        bigint binary boolean cast char decimal double float int smallint string tinyint to_binary to_char
        to_number to_varchar try_cast try_to_binary try_to_number typeof
    """,
    "Hash, encryption and encoding": """
        aes_decrypt aes_encrypt base64 bin crc32 decode encode from_base32 hash hex hmac md5 sha sha1 sha2
        to_base32 try_aes_decrypt try_url_decode unbase64 unhex url_decode url_encode uuid xxhash64
    """,
    "Spatial and vector": """
        st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid vector_cosine_similarity
        vector_inner_product vector_l2_distance vector_norm vector_normalize
    """,
    "Math": """
        abs acos acosh asin asinh atan atan2 atanh bit_count bit_get bit_length bround cbrt ceil ceiling conv
        cos cosh cot counter_diff csc degrees e exp expm1 factorial floor getbit hypot ln log log10 log1p log2
        mod monotonically_increasing_id negative pi pmod positive pow power radians rand randn random randstr
        rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add
        try_divide try_mod try_multiply try_subtract uniform width_bucket
    """,
    "Text": """
        ascii btrim char_length character_length chr collate collation concat concat_ws contains elt endswith
        find_in_set format_number format_string ilike initcap instr is_valid_utf8 jaro_winkler_similarity lcase
        left len length levenshtein locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay
        parse_url position printf quote regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like
        regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim sentences soundex space split
        split_part startswith substr substring substring_index translate trim try_parse_url try_validate_utf8
        ucase upper validate_utf8
    """,
}

DUCKDB = {
    "Conditional": """
        assert_true error greatest if isnan least nullif switch
    """,
    "Sketch": """
        approx_count_distinct approx_quantile approx_top_k
    """,
    "Window": """
        cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense
        row_number
    """,
    "Aggregate": """
        any_value arbitrary arg_max arg_max_null arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last
        argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and bool_or corr count count_if
        count_star countif covar_pop covar_samp entropy favg first fsum geomean geometric_mean group_concat
        histogram histogram_exact json_group_array json_group_object json_group_structure kahan_sum kurtosis
        kurtosis_pop last list listagg lttb mad max max_by mean median min min_by mode product quantile
        quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
        regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan
        var_pop var_samp variance variant_group_array variant_group_object wavg weighted_avg
    """,
    "Table-generating": """
        generate_series generate_subscripts range regexp_split_to_table unnest
    """,
    "Array, map and struct": """
        aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat
        array_contains array_cosine_distance array_cosine_similarity array_cross_product array_distance
        array_distinct array_dot_product array_extract array_filter array_grade_up array_has array_has_all
        array_has_any array_indexof array_inner_product array_intersect array_length array_negative_dot_product
        array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back
        array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice
        array_sort array_to_json array_to_string array_transform array_unique array_value array_where array_zip
        cardinality element_at equi_width_bins filter flatten grade_up list_aggr list_aggregate list_any_value
        list_append list_apply list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor
        list_bool_and list_bool_or list_cat list_concat list_contains list_cosine_distance
        list_cosine_similarity list_count list_distance list_distinct list_dot_product list_element list_entropy
        list_extract list_filter list_first list_grade_up list_has list_has_all list_has_any list_histogram
        list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop list_last list_mad
        list_max list_median list_min list_mode list_negative_dot_product list_negative_inner_product list_pack
        list_position list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort
        list_select list_sem list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg
        list_sum list_transform list_unique list_value list_var_pop list_var_samp list_where list_zip map
        map_concat map_contains map_contains_entry map_contains_value map_entries map_extract map_extract_value
        map_from_entries map_keys map_values reduce row struct_concat struct_contains struct_extract
        struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_pack struct_position
        struct_update struct_values union_extract union_tag union_value unpivot_list
    """,
    "JSON, CSV and variant": """
        from_json from_json_strict json json_array json_array_length json_contains json_deep_merge json_exists
        json_extract json_extract_path json_extract_path_text json_extract_string json_insert json_keys
        json_merge_patch json_merge_patch_diff json_normalize json_object json_pretty json_quote json_remove
        json_replace json_set json_strip_nulls json_structure json_transform json_transform_strict json_type
        json_valid json_value row_to_json to_json variant_array_length variant_contains variant_exists
        variant_extract variant_extract_string variant_keys variant_normalize variant_type variant_typeof
    """,
    "Date and time": """
        age ago century current_date current_localtime current_localtimestamp date_add date_diff date_part
        date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear
        days_in_month decade epoch epoch_ms epoch_ns epoch_us era get_current_time get_current_timestamp hour
        isodow isoyear julian last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns
        make_timestamptz microsecond millennium millisecond minute month monthname nanosecond now quarter second
        strftime strptime time_bucket timezone timezone_hour timezone_minute to_centuries to_days to_decades
        to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds
        to_timestamp to_weeks to_years today trunc try_strptime week weekday weekofyear year yearweek
    """,
    "Cast": """
        alias enum_code enum_first enum_last enum_range enum_range_boundary pg_typeof to_binary typeof
    """,
    "Hash, encryption and encoding": """
        base64 bin decode encode from_base64 from_binary from_hex gen_random_uuid hash hex md5 md5_number
        md5_number_lower md5_number_upper sha1 sha256 to_base64 to_hex unbin unhex url_decode url_encode uuid
        uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7
    """,
    "Spatial and vector": """
        st_asbinary st_asgeojson st_astext st_aswkb st_aswkt st_crs st_geomfromgeojson st_geomfromwkb
        st_intersects_extent st_setcrs
    """,
    "Math": """
        abs acos acosh add asin asinh atan atan2 atanh bit_count bit_length bit_position bitstring cbrt ceil
        ceiling cos cosh cot degrees divide even exp factorial fdiv floor fmod gamma gcd get_bit
        greatest_common_divisor isfinite isinf lcm least_common_multiple lgamma ln log log10 log2 mod multiply
        nextafter pi pow power radians random round round_even roundbankers set_bit sign signbit sin sinh sqrt
        subtract tan tanh to_base xor
    """,
    "Text": """
        ascii bar binom char_length character_length chr concat concat_ws contains damerau_levenshtein
        editdist3 ends_with format format_bytes formatreadabledecimalsize formatreadablesize hamming
        ilike_escape instr jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme len
        length length_grapheme levenshtein like_escape lower lpad ltrim mismatches nfc_normalize
        not_ilike_escape not_like_escape octet_length ord overlay parse_dirname parse_dirpath parse_filename
        parse_formatted_bytes parse_path path_join position prefix printf regexp_escape regexp_extract
        regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array repeat replace
        reverse right right_grapheme rpad rtrim split split_part starts_with str_split str_split_regex
        string_split string_split_regex string_to_array strip_accents strlen strpos substr substring
        substring_grapheme suffix translate trim ucase unicode upper
    """,
}

# Table functions of DuckDB: FROM range(10).
DUCKDB_TABLES = "generate_series json_each json_tree range repeat repeat_row test_all_types unnest"

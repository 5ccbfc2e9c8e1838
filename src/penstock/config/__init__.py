"""penstock.yaml as frozen values; every mistake is reported with its place."""

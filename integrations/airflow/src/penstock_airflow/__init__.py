"""Airflow provider of Penstock, over `penstock.client`.

>>> from penstock_airflow.operators import PenstockRunOperator
>>> from penstock_airflow.sensors import PenstockReadySensor
"""

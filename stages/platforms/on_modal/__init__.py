"""The parts of platform `modal`: the Function, its Volume, its bill, its errors."""

def all_of_them():
    return ()
